// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite between hosts, which are threads here: "net", every rank on a host of its own.
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/net/net_collectives.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"

namespace fsdp {

std::vector<std::string> BackendsUnderTest() { return {"net"}; }

absl::Status CanRun(const GroupUnderTest&) { return absl::OkStatus(); }

absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  ThreadNetwork network(under_test.size);
  return RunRanks(under_test.size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    const auto group = std::make_shared<HostProcessGroup>(
        std::make_unique<NetCollectives>(network.Join(meeting->rank()), meeting->device(), NetOptions{timeout}));
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      meeting->Abort(status);  // first, or a rank that this one takes along could be taken for the first to fail
      group->Abort(status);
    }
    return status;
  });
}

}  // namespace fsdp
