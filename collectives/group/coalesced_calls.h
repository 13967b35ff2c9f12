// SPDX-License-Identifier: Apache-2.0
//
// CoalescedCalls: during its lifetime the collectives that are issued to a group are collected; its destructor puts
// them on their stream as one launch (ncclGroupStart and ncclGroupEnd). Every rank must coalesce the same collectives,
// all on one stream, and none may touch memory that another one writes: a backend may run them together and in any
// order. Not nested; no blobs, splits or barriers meanwhile. Groups without the interface, such as host groups, issue
// them immediately.
//
//   {
//     const CoalescedCalls coalesced(group);
//     for (const Part& part : parts) group.AllGather(part.own, part.whole, stream);
//   }
#ifndef FSDP_COLLECTIVES_GROUP_COALESCED_CALLS_H_
#define FSDP_COLLECTIVES_GROUP_COALESCED_CALLS_H_

#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// Optional interface, found by dynamic_cast: process groups that can launch several collectives as one.
// Implemented by CudaProcessGroup; use it through CoalescedCalls, which cannot forget the end.
class CoalescingGroup {
 public:
  virtual ~CoalescingGroup() = default;

  // Called in pairs. Collectives in between are launched by EndCoalescing; errors come out of the stream.
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
