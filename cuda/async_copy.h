// SPDX-License-Identifier: Apache-2.0
//
// Copies from device memory to shared memory that bypass the registers and run while the thread computes (cp.async):
//
//   CopyAsync<16>(to, from, true);     // any number of copies
//   CommitCopies();                    // these are a group
//   ... compute ...
//   AwaitCopies<0>();                  // all groups of the calling thread but its latest 0 have arrived
//   __syncthreads();                   // the groups of the block's other threads have arrived too
//
// No thread may read or write the destination between CopyAsync and the barrier. For .cu files; the emulator has its
// own header (emulator/async_copy.h).
#ifndef FSDP_CUDA_ASYNC_COPY_H_
#define FSDP_CUDA_ASYNC_COPY_H_

#include <cuda_runtime.h>

#ifndef __CUDACC__
#include "fsdp/cuda/emulator/emulated_async_copy.h"
#else

namespace fsdp {

// Starts a copy of kBytes (4, 8 or 16) to shared memory, both sides aligned to them. Without `exists`, zeros are
// written and `from` is not read.
template <int kBytes>
__device__ inline void CopyAsync(void* to, const void* from, bool exists) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = exists ? kBytes : 0;  // the rest is filled with zeros
  if constexpr (kBytes == 16) {
    // Bypasses the first-level cache: data that a block loads once would only evict other data.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Ends the group of the calling thread's copies since the last call.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the kPending latest groups of the calling thread are under way.
template <int kPending>
__device__ inline void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fsdp

#endif  // __CUDACC__
#endif  // FSDP_CUDA_ASYNC_COPY_H_
