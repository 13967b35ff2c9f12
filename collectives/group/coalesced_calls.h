// SPDX-License-Identifier: Apache-2.0
//
// CoalescedCalls: while it lives, the collectives that are issued to a group are collected, and its end puts them on
// their stream as one (ncclGroupStart). Every rank coalesces the same ones, all on one stream, and none touches memory
// that another writes: a backend may run them together, and in any order. Not nested; no blobs, splits or barriers
// meanwhile. To a group that knows nothing of it, such as the host's, they are calls like any others.
//
//   {
//     const CoalescedCalls coalesced(group);
//     for (const Part& part : parts) group.AllGather(part.own, part.whole, stream);
//   }
#ifndef FSDP_COLLECTIVES_GROUP_COALESCED_CALLS_H_
#define FSDP_COLLECTIVES_GROUP_COALESCED_CALLS_H_

#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// What a group that can do so is beside a ProcessGroup.
class CoalescingGroup {
 public:
  virtual ~CoalescingGroup() = default;
  virtual void BeginCoalescing() = 0;
  virtual void EndCoalescing() = 0;
};

class CoalescedCalls final {
 public:
  explicit CoalescedCalls(ProcessGroup& group) : group_(dynamic_cast<CoalescingGroup*>(&group)) {
    if (group_ != nullptr) group_->BeginCoalescing();
  }
  ~CoalescedCalls() {
    if (group_ != nullptr) group_->EndCoalescing();
  }
  CoalescedCalls(const CoalescedCalls&) = delete;
  CoalescedCalls& operator=(const CoalescedCalls&) = delete;

 private:
  CoalescingGroup* const group_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_COALESCED_CALLS_H_
