// SPDX-License-Identifier: Apache-2.0
//
// ExecutionOrder: checks that units run in one order: the same on all ranks in the first forward, and in later forwards
// as in the first. Collectives match up only by order, so ranks that disagree would gather each other's parameters.
#ifndef FSDP_FSDP_UNITS_EXECUTION_ORDER_H_
#define FSDP_FSDP_UNITS_EXECUTION_ORDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/shard_groups.h"

namespace fsdp {

// An instance serves one root module, and is used by one thread of each rank. Names of units are their display names.
class ExecutionOrder {
 public:
  // `groups` must outlive it.
  explicit ExecutionOrder(const ShardGroups& groups) : groups_(groups) {}

  // Call when `unit` is about to run its training forward. In the first forward: kFailedPrecondition on all ranks if
  // they run different units; collective. In later forwards: local, and sets `*warning` the first time that the order
  // differs.
  absl::Status Enter(const std::string& unit, std::string* warning);

  // Call at the end of a training forward. Collective; returns the errors of Enter.
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
