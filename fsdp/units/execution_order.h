// SPDX-License-Identifier: Apache-2.0
//
// ExecutionOrder: whether units run in one order: on all ranks in the first forward, and in every later one as in the
// first. Collectives match up by order alone, so ranks that disagree would gather each other's parameters.
#ifndef FSDP_FSDP_UNITS_EXECUTION_ORDER_H_
#define FSDP_FSDP_UNITS_EXECUTION_ORDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/shard_groups.h"

namespace fsdp {

class ExecutionOrder {
 public:
  // `groups` must outlive it.
  explicit ExecutionOrder(const ShardGroups& groups) : groups_(groups) {}

  // A unit is about to run its training forward. In the first forward, kFailedPrecondition where ranks run different
  // units, on all of them; collective. `*warning` is set when a later forward first differs from the first.
  absl::Status Enter(const std::string& unit, std::string* warning);

  // The forward has ended; collective as Enter.
  absl::Status EndForward(std::string* warning);

 private:
  const ShardGroups& groups_;
  std::vector<std::string> first_;
  bool in_first_ = true;
  bool warned_ = false;
  size_t at_ = 0;  // in first_, of the current forward
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_EXECUTION_ORDER_H_
