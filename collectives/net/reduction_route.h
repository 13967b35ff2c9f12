// SPDX-License-Identifier: Apache-2.0
//
// ReductionRoute: how a reduce_scatter goes over several hosts with several ranks each, a pure function of their
// numbers. Both routes add in the order of ranks, so they differ in bytes and not in bits. A ring or a tree would carry
// fewer bytes than either, and add in another order.
#ifndef FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
#define FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_

#include <string_view>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

enum class ReductionRoute {
  // Every rank sends every other one its slice, which adds all.
  kFlat,
  // Host after host adds its ranks to the sum that the host before sent; the last one sends the result to its owner.
  kChain,
};

// "flat", "chain". A literal.
std::string_view ReductionRouteName(ReductionRoute route);

// What the busier direction of a host's link carries, in units of the input's bytes.
double BusiestLinkShare(ReductionRoute route, int hosts, int ranks_per_host, DType dtype);

// The route on which the busiest link carries less; flat if they are equal, since it waits for the network once.
ReductionRoute ChooseReductionRoute(int hosts, int ranks_per_host, DType dtype);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_REDUCTION_ROUTE_H_
