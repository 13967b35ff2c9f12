// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/benchmark/gpu_timer.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

// With timing, unlike the events of CudaEvent.
struct GpuTimer::Events {
  ~Events() {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }

  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

absl::StatusOr<std::unique_ptr<GpuTimer>> GpuTimer::Create(Stream& stream) {
  const int device = CudaStream::Of(stream).ordinal();
  auto events = std::make_unique<Events>();
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice", device));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&events->begin), "cudaEventCreate", device));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&events->end), "cudaEventCreate", device));
  return std::unique_ptr<GpuTimer>(new GpuTimer(stream, std::move(events)));
}

GpuTimer::GpuTimer(Stream& stream, std::unique_ptr<Events> events) : stream_(stream), events_(std::move(events)) {}

GpuTimer::~GpuTimer() = default;

void GpuTimer::Begin() {
  CudaStream& stream = CudaStream::Of(stream_);
  stream.Issue({}, [event = events_->begin, device = stream.ordinal()](cudaStream_t on) {
    return CudaStatus(cudaEventRecord(event, on), "cudaEventRecord", device);
  });
}

void GpuTimer::End() {
  CudaStream& stream = CudaStream::Of(stream_);
  stream.Issue({}, [event = events_->end, device = stream.ordinal()](cudaStream_t on) {
    return CudaStatus(cudaEventRecord(event, on), "cudaEventRecord", device);
  });
}

absl::StatusOr<double> GpuTimer::Seconds() {
  FSDP_RETURN_IF_ERROR(stream_.Synchronize());
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, events_->begin, events_->end);
  FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaEventElapsedTime", CudaStream::Of(stream_).ordinal()));
  return milliseconds * 1e-3;
}

}  // namespace fsdp
