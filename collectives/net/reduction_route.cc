// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/reduction_route.h"

#include "fsdp/collectives/host/reduce_rows.h"

namespace fsdp {

std::string_view ReductionRouteName(ReductionRoute route) { return route == ReductionRoute::kFlat ? "flat" : "chain"; }

// Flat: each of a host's ranks has a slice of 1/n of the input for each rank of the other hosts. Chain: the sums of all
// slices come from the host before, and the results of the own slices from the last host; the first host of two only
// sends sums, and the second only receives them.
double BusiestLinkShare(ReductionRoute route, int hosts, int ranks_per_host, DType dtype) {
  if (hosts == 1) return 0;
  if (route == ReductionRoute::kFlat) {
    return static_cast<double>(ranks_per_host) * (hosts - 1) / hosts;
  }
  const double sums = static_cast<double>(SumSizeOf(dtype)) / static_cast<double>(SizeOf(dtype));
  return hosts == 2 ? sums : sums + 1.0 / hosts;
}

ReductionRoute ChooseReductionRoute(int hosts, int ranks_per_host, DType dtype) {
  const auto share = [&](ReductionRoute route) { return BusiestLinkShare(route, hosts, ranks_per_host, dtype); };
  return share(ReductionRoute::kChain) < share(ReductionRoute::kFlat) ? ReductionRoute::kChain : ReductionRoute::kFlat;
}

}  // namespace fsdp
