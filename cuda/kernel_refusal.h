// SPDX-License-Identifier: Apache-2.0
//
// KernelRefusal: what a kernel writes for kernel_failure.h.
#ifndef FSDP_CUDA_KERNEL_REFUSAL_H_
#define FSDP_CUDA_KERNEL_REFUSAL_H_

#include <cstdint>

namespace fsdp {

struct KernelRefusal {
  enum Kind : int { kToken, kTarget };
  enum State : int { kNone, kBeingWritten, kWritten };

  int state;
  int kind;
  int64_t value;
  int64_t index;  // of the value, in `count`
  int64_t count;
  int64_t bound;  // what is wanted is in [0, bound)
};

}  // namespace fsdp

#endif  // FSDP_CUDA_KERNEL_REFUSAL_H_
