// SPDX-License-Identifier: Apache-2.0
//
// Launch: launches a kernel; all launches use it. It is a plain call without <<<>>>, so that kernels also compile with
// an ordinary C++ compiler against the emulator (emulator/). Parameters are copied byte by byte: pass pointers and
// small trivial structs. For .cu files.
#ifndef FSDP_CUDA_LAUNCH_H_
#define FSDP_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace fsdp {

// The shared memory that a block may have without the attribute that Launch sets.
constexpr size_t kDefaultSharedBytes = 48 << 10;

// Puts `kernel` on `stream`, with `shared_bytes` of shared memory for each block (dynamic_shared_memory.h). Does not
// block. An error becomes the thread's last one: check it with CudaLaunchStatus (cuda_status.h), after one launch or
// several. An empty grid or block is an error. The maximum of shared memory depends on the GPU: 163 KB per block on
// sm_80, 227 KB on sm_90.
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Args&&... args) {
  if (shared_bytes > kDefaultSharedBytes) {
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_LAUNCH_H_
