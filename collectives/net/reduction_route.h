// SPDX-License-Identifier: Apache-2.0
//
// ReductionRoute: how a reduce_scatter goes over several hosts with several ranks each, a pure function of their
// numbers. All routes add in the order of ranks, so they differ in bytes and not in bits. A ring or a tree would carry
// fewer bytes than any, and add in another order.
#ifndef FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
#define FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_

#include <cstdint>
#include <string_view>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

enum class ReductionRoute {
  // Every rank sends every other one its slice, which adds all.
  kFlat,
  // Host after host adds its ranks to the sum that the host before sent; the last one sends the result to its owner.
  kChain,
  // Of two hosts: a chain, but for a part of the slices of the first host's ranks, which goes as in a flat one. A chain
  // of two sends nearly everything from the first host to the second; this uses the other direction too. Of more hosts:
  // a chain.
  kMixed,
};

// "flat", "chain", "mixed". A literal.
std::string_view ReductionRouteName(ReductionRoute route);

// What the busier direction of a host's link carries, in units of the input's bytes.
double BusiestLinkShare(ReductionRoute route, int hosts, int ranks_per_host, DType dtype);

// Of a slice of `count` elements of a rank on the first host: how many, its first ones, are sent to it by each rank of
// the other host on kMixed. The others go by the chain.
int64_t DirectCount(int hosts, int ranks_per_host, DType dtype, int64_t count);

// The route on which the busiest link carries least; among equals the first above: flat waits for the network once.
ReductionRoute ChooseReductionRoute(int hosts, int ranks_per_host, DType dtype);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
