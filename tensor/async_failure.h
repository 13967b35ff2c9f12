// SPDX-License-Identifier: Apache-2.0
//
// AsyncFailure: the errors that the GPU does not report for work that has been issued, such as a communicator whose
// peer died or a token out of range: the work ends, and its results are wrong. A stream that carries such work watches
// the failure, its events carry it on to the streams that wait for them, and Synchronize returns it as the stream's
// error.
#ifndef FSDP_TENSOR_ASYNC_FAILURE_H_
#define FSDP_TENSOR_ASYNC_FAILURE_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace fsdp {

// Implemented by the owner of such work: a communicator's watchdog (collectives/cuda), a kernel's record
// (cuda/kernel_failure.h).
class AsyncFailure {
 public:
  virtual ~AsyncFailure() = default;

  // OK, or the first error, which is permanent. Must be set before the work that failed ends. Never blocks;
  // thread-safe.
  virtual absl::Status status() const = 0;
};

using AsyncFailures = std::vector<std::shared_ptr<const AsyncFailure>>;

// Appends the elements of `more` that `failures` lacks. Both are short: one failure for each process group that a
// stream works with, and one for the kernels. O(size of `more` * size of `failures`).
inline void AddFailures(const AsyncFailures& more, AsyncFailures& failures) {
  for (const auto& failure : more) {
    if (std::find(failures.begin(), failures.end(), failure) == failures.end()) failures.push_back(failure);
  }
}

// The first error among `failures`, in their order; OK if none has failed so far.
inline absl::Status FirstFailure(const AsyncFailures& failures) {
  for (const auto& failure : failures) {
    if (absl::Status status = failure->status(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace fsdp

#endif  // FSDP_TENSOR_ASYNC_FAILURE_H_
