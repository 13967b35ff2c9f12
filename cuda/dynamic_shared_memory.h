// SPDX-License-Identifier: Apache-2.0
//
// SharedMemory: a block's shared memory as one struct, for kernels launched with sizeof(T) bytes of it (launch.h). It
// has one spelling for any size (more than 48 KB must be dynamic in CUDA), which the emulator supports too: it fills
// the memory with NaN and guards its end.
#ifndef FSDP_CUDA_DYNAMIC_SHARED_MEMORY_H_
#define FSDP_CUDA_DYNAMIC_SHARED_MEMORY_H_

#include <cuda_runtime.h>

namespace fsdp {

// Contents unspecified. T is trivial, of alignment 16 at most. All threads of a block get the same object. Call it once
// per kernel: two calls give the same memory.
template <typename T>
__device__ inline T& SharedMemory() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char fsdp_shared_memory[];
  return *reinterpret_cast<T*>(fsdp_shared_memory);
#else
  return *reinterpret_cast<T*>(EmulatedBlock::Current().shared_memory());
#endif
}

}  // namespace fsdp

#endif  // FSDP_CUDA_DYNAMIC_SHARED_MEMORY_H_
