// SPDX-License-Identifier: Apache-2.0
//
// Device: a place that holds memory and runs work. The host device (host_device.h) runs work on threads, the CUDA
// device (cuda/cuda_device.h) on a GPU; code above tensor/ and collectives/ cannot tell them apart. A Device belongs to
// one rank and counts that rank's memory, so ranks that are threads of one process are counted separately. Thread-safe.
// Streams hold a reference to their device, and buffers to its memory, so either may be the last to go.
//
// Abilities that only some devices have are optional interfaces, found by dynamic_cast: GraphDevice (work_graph.h),
// PriorityDevice (stream_priority.h).
#ifndef FSDP_TENSOR_DEVICE_H_
#define FSDP_TENSOR_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/device_id.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class TensorOps;

class Device {
 public:
  virtual ~Device() = default;

  // Chooses kernels (nn/device_layer_ops.h); everything else goes through this interface.
  virtual DeviceType type() const = 0;

  // Type and index, as the buffers of Allocate have them.
  virtual DeviceId id() const { return {type(), 0}; }

  // "cpu", "cuda:0".
  virtual std::string name() const = 0;

  // `nbytes` of memory aligned to at least 64 bytes; contents unspecified. 0 bytes is legal. May serve from a cache of
  // freed memory. kResourceExhausted names the device, the wanted and the used bytes.
  virtual absl::StatusOr<Buffer> Allocate(int64_t nbytes) = 0;

  // Host memory that this device copies to and from at full speed (pinned, on a GPU).
  virtual absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes) = 0;

  // A new stream; `name` appears in errors and traces.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(std::string name) = 0;

  // The kernels of tensor/ops.h on this device.
  virtual const TensorOps& ops() const = 0;

  // Bytes held by live buffers of Allocate and RecordAllocation, now and at their highest since ResetPeak.
  virtual int64_t allocated_bytes() const = 0;
  virtual int64_t peak_allocated_bytes() const = 0;
  // Sets the peak to the present amount.
  virtual void ResetPeak() = 0;

  // Counts memory that another owner (a process group's shared heap) took on this device's behalf; negative when freed.
  virtual void RecordAllocation(int64_t nbytes) = 0;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_DEVICE_H_
