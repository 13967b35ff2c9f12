// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/reduction_route.h"

#include <algorithm>

#include "fsdp/collectives/host/reduce_rows.h"

namespace fsdp {
namespace {

// Bytes of an element of a sum that is passed on, in units of an element's.
double SumRatio(DType dtype) { return static_cast<double>(SumSizeOf(dtype)) / static_cast<double>(SizeOf(dtype)); }

// The part of a slice that is direct. It balances the two directions: the sums of the second host's slices in one take
// as long as its rows in the other.
double DirectShare(int ranks_per_host, DType dtype) { return std::min(1.0, SumRatio(dtype) / ranks_per_host); }

// Traffic from the first host of two to the second, and back: the slices of either host are half of the input.
double MixedLinkShare(int ranks_per_host, DType dtype) {
  const double direct = DirectShare(ranks_per_host, dtype);
  const double sums = SumRatio(dtype) * (2 - direct) / 2;
  const double results_and_rows = (1 - direct + ranks_per_host * direct) / 2;
  return std::max(sums, results_and_rows);
}

}  // namespace

std::string_view ReductionRouteName(ReductionRoute route) {
  switch (route) {
    case ReductionRoute::kFlat:
      return "flat";
    case ReductionRoute::kChain:
      return "chain";
    default:
      return "mixed";
  }
}

// Flat: each of a host's ranks has a slice of 1/n of the input for each rank of the other hosts. Chain: the sums of all
// slices come from the host before, and the results of the own slices from the last host; the first host of two only
// sends sums, and the second only receives them.
double BusiestLinkShare(ReductionRoute route, int hosts, int ranks_per_host, DType dtype) {
  if (hosts == 1) return 0;
  if (route == ReductionRoute::kFlat) {
    return static_cast<double>(ranks_per_host) * (hosts - 1) / hosts;
  }
  if (hosts == 2) return route == ReductionRoute::kMixed ? MixedLinkShare(ranks_per_host, dtype) : SumRatio(dtype);
  return SumRatio(dtype) + 1.0 / hosts;
}

int64_t DirectCount(int hosts, int ranks_per_host, DType dtype, int64_t count) {
  if (hosts != 2) return 0;
  return static_cast<int64_t>(DirectShare(ranks_per_host, dtype) * static_cast<double>(count));
}

ReductionRoute ChooseReductionRoute(int hosts, int ranks_per_host, DType dtype) {
  const auto share = [&](ReductionRoute route) { return BusiestLinkShare(route, hosts, ranks_per_host, dtype); };
  ReductionRoute best = ReductionRoute::kFlat;
  for (const ReductionRoute route : {ReductionRoute::kChain, ReductionRoute::kMixed}) {
    if (share(route) < share(best)) best = route;
  }
  return best;
}

}  // namespace fsdp
