// SPDX-License-Identifier: Apache-2.0
//
// The host device is a memory (host_memory.h) and a factory of streams (host_stream.h); it has no other state that work
// could race for. Streams hold the device, and buffers the memory, so either may be the last to go.

#include "fsdp/tensor/host_device.h"

#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/tensor/host_memory.h"
#include "fsdp/tensor/host_stream.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

class HostDevice final : public Device, public std::enable_shared_from_this<HostDevice> {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : kernel_threads_(options.kernel_threads), memory_(HostMemory::Create(options.cache_freed)) {}

  DeviceType type() const override { return DeviceType::kCpu; }
  std::string name() const override { return "cpu"; }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return memory_->Allocate(nbytes); }
  absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes) override { return memory_->Allocate(nbytes); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(std::string name) override {
    return HostStream::Create(shared_from_this(), std::move(name));
  }
  const TensorOps& ops() const override { return HostTensorOps(); }
  int64_t allocated_bytes() const override { return memory_->allocated_bytes(); }
  int64_t peak_allocated_bytes() const override { return memory_->peak_allocated_bytes(); }
  void ResetPeak() override { memory_->ResetPeak(); }
  void RecordAllocation(int64_t nbytes) override { memory_->Note(nbytes); }

  int kernel_threads() const { return kernel_threads_; }

 private:
  const int kernel_threads_;
  const std::shared_ptr<HostMemory> memory_;
};

}  // namespace

std::shared_ptr<Device> CreateHostDevice(const HostDeviceOptions& options) {
  Check(options.kernel_threads >= 1, "a host device with no kernel threads");
  return std::make_shared<HostDevice>(options);
}

int KernelThreads(const Device& device) {
  const auto* host = dynamic_cast<const HostDevice*>(&device);
  Check(host != nullptr, "KernelThreads of a device that is not the host device");
  return host->kernel_threads();
}

}  // namespace fsdp
