// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite on the host: "local" and "shm".
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/host/shm_fabric.h"
#include "fsdp/collectives/run_ranks.h"

namespace fsdp {

std::vector<std::string> BackendsUnderTest() { return {"local", "shm"}; }

absl::Status CanRun(const GroupUnderTest&) { return absl::OkStatus(); }

absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  const int size = under_test.size;
  if (under_test.backend == "local") {
    return RunRanks(size, rank_main, timeout);
  }
  // Ranks of shm are threads here; they meet through a local group, as processes do through the store.
  return RunRanks(size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                          CreateShmFabric(meeting->rank(), size, meeting->device(),
                                          [&](std::string_view blob) { return meeting->AllGatherObject(blob); }));
    const auto group =
        std::make_shared<HostProcessGroup>(std::make_unique<HostCollectives>(std::move(fabric), timeout));
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      meeting->Abort(status);  // first, or a rank that fails because of this one could count as the first
      group->Abort(status);
    }
    return status;
  });
}

}  // namespace fsdp
