// SPDX-License-Identifier: Apache-2.0
#include "fsdp/cuda/stream_hold_testutil.h"

#include <cuda_runtime_api.h>

#include <chrono>

#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

// A host function of CUDA, unlike Stream::Run, is the GPU's to call, so the stream's later work is issued before it.
void StreamHold::Stop(Stream& stream) {
  CudaStream& on = CudaStream::Of(stream);
  on.Issue({}, [this, device = on.ordinal()](CUstream_st* s) {
    const auto wait = [](void* released) {
      (void)static_cast<std::counting_semaphore<>*>(released)->try_acquire_for(std::chrono::seconds(20));
    };
    return CudaStatus(cudaLaunchHostFunc(s, wait, &released_), "cudaLaunchHostFunc", device);
  });
}

}  // namespace fsdp
