// SPDX-License-Identifier: Apache-2.0
//
// KernelFailure: how a kernel reports that the value of an operand is out of range, such as a token beyond the
// vocabulary. The kernel writes a KernelRefusal into pinned memory and continues without using the value; the stream
// returns the error at its next wait for the GPU. So no kernel waits until the host has checked values.
#ifndef FSDP_CUDA_KERNEL_FAILURE_H_
#define FSDP_CUDA_KERNEL_FAILURE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/tensor/async_failure.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// The record that a kernel writes, with RefuseValue (refuse_value.h).
struct KernelRefusal {
  // The kind of the value, which selects the message.
  enum Kind : int { kToken, kTarget };
  // The state of the record; see kernel_failure.cc.
  enum State : int { kNone, kBeingWritten, kWritten };

  // Set last by the kernel: the other fields are valid once it is kWritten.
  int state;
  int kind;
  int64_t value;
  int64_t index;  // of the value, in `count`
  int64_t count;
  int64_t bound;  // the valid range is [0, bound)
};

class KernelFailure final : public AsyncFailure {
 public:
  // Uses pinned memory of `device`.
  static absl::StatusOr<std::shared_ptr<KernelFailure>> Create(Device& device);

  // kOutOfRange naming the value and its place. OK while no kernel has refused a value. The first refusal is permanent.
  absl::Status status() const override;

  // For kernels, by RefuseValue (refuse_value.h). The address is valid on the GPU and on the host, for as long as this
  // object lives.
  KernelRefusal* refusal() const { return reinterpret_cast<KernelRefusal*>(memory_.data()); }

 private:
  explicit KernelFailure(Buffer memory) : memory_(std::move(memory)) {}

  const Buffer memory_;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_KERNEL_FAILURE_H_
