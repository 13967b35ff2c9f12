// SPDX-License-Identifier: Apache-2.0
//
// SymmetricGroup: groups whose ranks can register memory with each other: as a window, which has the same size on all
// ranks, and in which a collective uses the same offset on all ranks. NCCL then reads and writes the peers' memory
// directly, by symmetric kernels or by the GPU's copy engines (NCCL's user guide, "Window Registration").
#ifndef FSDP_COLLECTIVES_GROUP_SYMMETRIC_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_SYMMETRIC_GROUP_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/buffer.h"

namespace fsdp {

// Memory that is a window of a group for as long as this object lives.
class SymmetricWindow {
 public:
  // Ends the registration, of this rank only, so the collectives of the window must have ended. Any thread.
  virtual ~SymmetricWindow() = default;
};

// Optional interface, found by dynamic_cast: process groups that may have windows. Implemented by CudaProcessGroup.
class SymmetricGroup {
 public:
  virtual ~SymmetricGroup() = default;

  // True if Allocate registers memory with a library, so that one large buffer is better than several small ones.
  virtual bool RegistersMemory() const = 0;

  // OK if this rank can register windows. kFailedPrecondition for a backend without them, or a library that is too old:
  // its version, and the version that is needed. Local.
  virtual absl::Status CheckWindows() const = 0;

  // Makes `memory`, a whole buffer of this or another group's Allocate, a window. The window does not own the memory,
  // which must outlive it, and is in no other window of this group. kFailedPrecondition, on every rank, if CheckWindows
  // fails on a rank, if sizes differ (both are named), or if the library reports that the GPUs do not reach each
  // other's memory. Every rank calls it; blocks until the collectives before have ended.
  virtual absl::StatusOr<std::unique_ptr<SymmetricWindow>> RegisterWindow(const Buffer& memory) = 0;

  // A group of the same ranks, whose all-gathers into windows of that group use the GPU's copy engines and no
  // multiprocessors. kFailedPrecondition as CheckWindows. Every rank calls it; blocks.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> SplitForCopyEngines() = 0;
};

// The interface of `group`, if CheckWindows is OK. kFailedPrecondition, naming `option`, if not, and for a group
// without the interface, among them every ForwardingProcessGroup.
inline absl::StatusOr<SymmetricGroup*> SymmetricGroupOf(ProcessGroup& group, std::string_view option) {
  auto* const symmetric = dynamic_cast<SymmetricGroup*>(&group);
  const absl::Status can = symmetric != nullptr
                               ? symmetric->CheckWindows()
                               : absl::FailedPreconditionError(absl::StrCat(
                                     "backend ", std::string(group.backend()), " on ", group.device()->name(),
                                     " has no symmetric windows: expected backend nccl, or not this "
                                     "option; ranks of a host reach each other's memory without it"));
  if (can.ok()) return symmetric;
  return absl::Status(can.code(), absl::StrCat(std::string(option), ": ", std::string(can.message())));
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_SYMMETRIC_GROUP_H_
