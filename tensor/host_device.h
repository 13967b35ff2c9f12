// SPDX-License-Identifier: Apache-2.0
//
// The host device: memory from the C++ heap, each stream a worker thread that runs its queue in order. So the overlap
// schedule of a GPU, with its prefetching and its use-after-free hazards, runs in ordinary tests under a race detector.
#ifndef FSDP_TENSOR_HOST_DEVICE_H_
#define FSDP_TENSOR_HOST_DEVICE_H_

#include <memory>

#include "fsdp/tensor/device.h"

namespace fsdp {

struct HostDeviceOptions {
  // Threads that a kernel on one stream may use (oneDNN's). Results depend on it in the last bit, so the caller always
  // chooses it.
  int kernel_threads = 1;

  // Keep freed buffers of 64 KiB and more for the next Allocate of the same rounded size: fresh pages cost ten times a
  // warm one.
  bool cache_freed = true;
};

// A device with its own memory count. Cheap (no thread, no memory before the first request), so each rank makes one.
std::shared_ptr<Device> CreateHostDevice(const HostDeviceOptions& options = {});

// The kernel_threads of `device`. Precondition: it is a host device.
int KernelThreads(const Device& device);

}  // namespace fsdp

#endif  // FSDP_TENSOR_HOST_DEVICE_H_
