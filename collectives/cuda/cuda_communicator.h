// SPDX-License-Identifier: Apache-2.0
//
// CudaCommunicator: CudaProcessGroup's interface to the library that moves data between GPUs: NCCL
// (nccl_communicator.h), or copies between ranks that are threads (local_cuda_communicator.h). A communicator only
// launches; the group takes care of order, agreement, deadlines and errors.
#ifndef FSDP_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_
#define FSDP_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/tensor/buffer.h"

// CUDA's, so that its headers need not be included here.
struct CUstream_st;

namespace fsdp {

// What a communicator may use for its work.
enum class CommunicatorPolicy {
  kDefault,
  kCopyEngines,  // all-gathers into windows use the GPU's copy engines and no multiprocessors
};

class CudaCommunicator {
 public:
  virtual ~CudaCommunicator() = default;

  // The name of the group's backend: "nccl", "local".
  virtual std::string_view backend() const = 0;

  // True if Launch computes kAvg of this dtype as exactly as a sum that is divided afterwards; if not, the group
  // launches a sum and divides it.
  virtual bool CanAverage(DType dtype) const = 0;

  // True if the work of Launch can be captured in a graph and replayed without the host.
  virtual bool CanCapture() const = 0;

  // Puts collectives that do not depend on each other on `stream`, whose device is current: in any order, or together.
  // Calls come one at a time, on every rank in the same order; they may block until the peers' calls have come. After
  // Abort they return an error.
  virtual absl::Status Launch(absl::Span<const Collective> collectives, CUstream_st* stream) = 0;

  // The first error of work that was launched. Never blocks; any thread.
  virtual absl::Status AsyncError() = 0;

  // Ends the launched work and blocks; its results are garbage. Any thread, any number of times.
  virtual void Abort() = 0;

  // As ProcessGroup::Allocate.
  virtual absl::StatusOr<Buffer> Allocate(int64_t nbytes) = 0;

  // As SymmetricGroup::RegistersMemory.
  virtual bool RegistersMemory() const { return false; }

  // OK if this rank can register windows, or, with kCopyEngines, if it can also make communicators of that policy.
  // kFailedPrecondition, with what was found and what is needed. Local.
  virtual absl::Status CheckWindows(CommunicatorPolicy policy) const {
    static_cast<void>(policy);
    return absl::FailedPreconditionError(absl::StrCat("backend ", std::string(backend()),
                                                      " on GPUs has no symmetric windows: expected backend nccl, or "
                                                      "not this option"));
  }

  // As SymmetricGroup::RegisterWindow, after all ranks have agreed that CheckWindows is OK and that sizes are equal.
  // Every rank calls it, after all launched work has ended. Blocking.
  virtual absl::StatusOr<std::unique_ptr<SymmetricWindow>> RegisterWindow(const Buffer& memory) {
    static_cast<void>(memory);
    return CheckWindows(CommunicatorPolicy::kDefault);
  }

  // A communicator of `members`, ranks of this one that include this rank, in the new order. Every rank calls it, each
  // with its own set, all sets disjoint, after all launched work has ended. With kCopyEngines, CheckWindows is OK on
  // all ranks. Blocking.
  virtual absl::StatusOr<std::shared_ptr<CudaCommunicator>> Split(const std::vector<int>& members,
                                                                  CommunicatorPolicy policy) = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_
