// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite between hosts, whose ranks are threads here. The layouts: each rank on its own host; two
// consecutive ranks on each host (one on the last if their number is odd), with the default route of reductions and
// with the chain; two hosts whose ranks alternate.
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/net/layered_collectives.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"

namespace fsdp {
namespace {

HostLayout LayoutOf(const GroupUnderTest& under_test) {
  std::vector<std::string> hosts;
  for (int r = 0; r < under_test.size; ++r) {
    hosts.push_back(absl::StrCat(under_test.backend == "two_a_host"    ? r / 2
                                 : under_test.backend == "alternating" ? r % 2
                                                                       : r));
  }
  return HostLayout::Of(hosts);
}

}  // namespace

std::vector<std::string> BackendsUnderTest() { return {"one_a_host", "two_a_host", "two_a_host_chain", "alternating"}; }

absl::Status CanRun(const GroupUnderTest&) { return absl::OkStatus(); }

absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  ThreadNetwork network(under_test.size);
  return RunRanks(under_test.size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    auto net = std::make_unique<NetCollectives>(network.Join(meeting->rank()), meeting->device(), NetOptions{timeout});
    const auto route =
        under_test.backend == "two_a_host_chain" ? std::make_optional(ReductionRoute::kChain) : std::nullopt;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<BlockingCollectives> collectives,
                          CreateLayeredCollectives(
                              std::move(net), LayoutOf(under_test),
                              [&](std::string_view blob) { return meeting->AllGatherObject(blob); }, route));
    const auto group = std::make_shared<HostProcessGroup>(std::move(collectives));
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      meeting->Abort(status);  // first, or a rank that fails because of this one could count as the first
      group->Abort(status);
    }
    return status;
  });
}

}  // namespace fsdp
