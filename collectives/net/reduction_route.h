// SPDX-License-Identifier: Apache-2.0
//
// ReductionRoute: how a reduce_scatter moves over several hosts with several ranks each, a pure function of their
// numbers. All routes add in the order of ranks, so they differ in bytes and not in bits. A ring or a tree would move
// fewer bytes, but would add in another order.
#ifndef FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
#define FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_

#include <cstdint>
#include <string_view>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

enum class ReductionRoute {
  // Every rank sends every other one its slice; the owner adds them.
  kFlat,
  // Host after host adds its ranks to the sum that the host before sent; the last one sends the result to its owner.
  kChain,
  // For two hosts: a chain, except that a part of the slices of the first host's ranks is sent as in a flat route. A
  // chain of two sends nearly everything from the first host to the second; this uses the other direction too. For more
  // hosts: a chain.
  kMixed,
};

// "flat", "chain", "mixed". A literal.
std::string_view ReductionRouteName(ReductionRoute route);

// The bytes in the busier direction of a host's link, in units of the input's bytes.
double BusiestLinkShare(ReductionRoute route, int hosts, int ranks_per_host, DType dtype);

// For a slice of `count` elements of a rank on the first host: the number of its first elements that each rank of the
// other host sends to it on kMixed. The others use the chain.
int64_t DirectCount(int hosts, int ranks_per_host, DType dtype, int64_t count);

// The route on which the busiest link carries least; among equals the first above, because flat waits for the network
// once.
ReductionRoute ChooseReductionRoute(int hosts, int ranks_per_host, DType dtype);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
