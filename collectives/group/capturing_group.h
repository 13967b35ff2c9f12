// SPDX-License-Identifier: Apache-2.0
//
// Whether a group's collectives can be part of a graph of work (tensor/work_graph.h).
#ifndef FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_

#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// What a group that may be able to is beside a ProcessGroup.
class CapturingGroup {
 public:
  virtual ~CapturingGroup() = default;

  // True where collectives on a stream that is captured go into its graph.
  virtual bool CanCapture() const = 0;
};

inline bool CanCapture(const ProcessGroup& group) {
  const auto* capturing = dynamic_cast<const CapturingGroup*>(&group);
  return capturing != nullptr && capturing->CanCapture();
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_
