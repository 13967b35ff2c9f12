// SPDX-License-Identifier: Apache-2.0
//
// ChainPlan: how the slices of a reduce_scatter by the chain of hosts, or by the mixed route, are cut into items, and
// the order of the items. layered_collectives.cc has the algorithm. A pure function of the spec and the hosts.
#ifndef FSDP_COLLECTIVES_NET_CHAIN_PLAN_H_
#define FSDP_COLLECTIVES_NET_CHAIN_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/host/reduce_rows.h"

namespace fsdp {

// The size of the sum of an item of a chain. Large enough that a step takes longer than its meetings, small enough that
// the hosts at the end of the chain begin soon.
inline constexpr int64_t kChainItemBytes = 1 << 20;

// Elements [begin, begin + count) of each slice of the ranks of host `block`. A count of 0 means no item: before the
// first item of a host and after the last one.
struct ChainItem {
  int block = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// The items of a chain, in order, and the direct pieces of the mixed route: one is sent with each item of host 1.
struct ChainPlan {
  // `direct`: the elements of each of host 0's slices that bypass the chain.
  ChainPlan(const CollectiveSpec& spec, int hosts, int64_t direct)
      : count(spec.count),
        direct(direct),
        most(kChainItemBytes / SumSizeOf(spec.dtype)),
        first_items((count - direct + most - 1) / most),
        items_per_block((count + most - 1) / most),
        items(first_items + items_per_block * (hosts - 1)),
        piece((direct + items_per_block - 1) / items_per_block) {}

  ChainItem ItemAt(int64_t i) const {
    if (i < 0 || i >= items) return {};
    const bool is_first = i < first_items;
    const int64_t begin = is_first ? direct + i * most : (i - first_items) % items_per_block * most;
    const auto block = static_cast<int>(is_first ? 0 : 1 + (i - first_items) / items_per_block);
    return {block, begin, std::min(most, count - begin)};
  }

  ChainItem DirectWithItem(int64_t i) const {
    const int64_t begin = (i - first_items) * piece;
    if (i < first_items || begin >= direct) return {};
    return {0, begin, std::min(piece, direct - begin)};
  }

  int64_t count;
  int64_t direct;
  int64_t most;             // elements of an item
  int64_t first_items;      // for host 0's slices
  int64_t items_per_block;  // for the slices of each other host
  int64_t items;
  int64_t piece;  // elements of a direct piece
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_CHAIN_PLAN_H_
