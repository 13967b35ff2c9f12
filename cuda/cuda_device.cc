// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice joins the parts: memory (cuda_memory.h), streams (cuda_stream.h), graphs (cuda_graph.h) and kernels
// (cuda_ops.h). It also implements the optional interfaces GraphDevice and PriorityDevice.

#include "fsdp/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_graph.h"
#include "fsdp/cuda/cuda_memory.h"
#include "fsdp/cuda/cuda_ops.h"
#include "fsdp/cuda/cuda_replay_gate.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/tensor/stream_priority.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

class CudaDevice final : public Device,
                         public GraphDevice,
                         public PriorityDevice,
                         public std::enable_shared_from_this<CudaDevice> {
 public:
  CudaDevice(int ordinal, std::shared_ptr<CudaMemory> memory) : ordinal_(ordinal), memory_(std::move(memory)) {}

  DeviceType type() const override { return DeviceType::kCuda; }
  DeviceId id() const override { return {type(), ordinal_}; }
  std::string name() const override { return DeviceName(id()); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return memory_->Allocate(nbytes); }
  absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes) override { return memory_->AllocatePinned(nbytes); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(std::string name) override {
    return CreateStreamOf(StreamPriority::kNormal, std::move(name));
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStreamOf(StreamPriority priority, std::string name) override {
    return CudaStream::Create(shared_from_this(), memory_, ordinal_, std::move(name), priority);
  }
  absl::StatusOr<std::unique_ptr<WorkGraph>> Capture(Stream& stream,
                                                     const std::function<absl::Status()>& work) override {
    return CudaGraph::Capture(*memory_, CudaStream::Of(stream), work);
  }
  absl::StatusOr<std::unique_ptr<ReplayGate>> CreateGate() override { return CudaReplayGate::Create(*this, ordinal_); }
  const TensorOps& ops() const override { return CudaTensorOps(); }
  int64_t allocated_bytes() const override { return memory_->allocated_bytes(); }
  int64_t peak_allocated_bytes() const override { return memory_->peak_allocated_bytes(); }
  void ResetPeak() override { memory_->ResetPeak(); }
  void RecordAllocation(int64_t nbytes) override { memory_->Note(nbytes); }

 private:
  const int ordinal_;
  const std::shared_ptr<CudaMemory> memory_;
};

}  // namespace

absl::StatusOr<int> CudaDeviceCount() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    // Clears the error, so that no later launch reports it.
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("no usable GPU: cudaGetDeviceCount: ", cudaGetErrorString(error)));
  }
  if (count == 0) return absl::UnavailableError("no usable GPU: cudaGetDeviceCount found none");
  return count;
}

absl::StatusOr<std::shared_ptr<Device>> CreateCudaDevice(int ordinal) {
  FSDP_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda:", ordinal, ": this process has ", count, " GPUs, numbered from 0"));
  }
  // CudaMemory first: it refuses a GPU without memory pools, on which no part of the device would work.
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<CudaMemory> memory, CudaMemory::Create(ordinal));
  return std::make_shared<CudaDevice>(ordinal, std::move(memory));
}

}  // namespace fsdp
