// SPDX-License-Identifier: Apache-2.0
//
// RefuseValue: the kernels' side of kernel_failure.h. For .cu files.
#ifndef FSDP_CUDA_REFUSE_VALUE_H_
#define FSDP_CUDA_REFUSE_VALUE_H_

#include <cuda_runtime.h>

#include "fsdp/cuda/kernel_failure.h"

namespace fsdp {

// Reports that `what` (its kind, value, index, count and bound) is out of range. The first report is kept; later ones,
// of any thread, do nothing. Any number of threads may call. `refusal` is pinned memory of the host; the fence makes
// the fields visible to the host before the state.
__device__ inline void RefuseValue(KernelRefusal* refusal, const KernelRefusal& what) {
  // Only the thread that finds kNone continues.
  if (atomicCAS(&refusal->state, KernelRefusal::kNone, KernelRefusal::kBeingWritten) != KernelRefusal::kNone) return;
  refusal->kind = what.kind;
  refusal->value = what.value;
  refusal->index = what.index;
  refusal->count = what.count;
  refusal->bound = what.bound;
  __threadfence_system();
  atomicExch(&refusal->state, KernelRefusal::kWritten);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_REFUSE_VALUE_H_
