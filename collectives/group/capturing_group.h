// SPDX-License-Identifier: Apache-2.0
//
// Whether a group's collectives can be part of a graph of work (tensor/work_graph.h). On a GPU that depends on the
// communicator: NCCL's collectives can be replayed without the host, collectives between threads cannot.
#ifndef FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_

#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// Optional interface, found by dynamic_cast: process groups whose collectives can be captured in a graph.
// Implemented by CudaProcessGroup.
class CapturingGroup {
 public:
  virtual ~CapturingGroup() = default;

  // True if a collective that is issued to a stream in capture becomes part of its graph; if not, it fails the capture.
  virtual bool CanCapture() const = 0;
};

// False for groups without the interface, among them every ForwardingProcessGroup.
inline bool CanCapture(const ProcessGroup& group) {
  const auto* capturing = dynamic_cast<const CapturingGroup*>(&group);
  return capturing != nullptr && capturing->CanCapture();
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_CAPTURING_GROUP_H_
