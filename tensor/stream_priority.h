// SPDX-License-Identifier: Apache-2.0
//
// StreamPriority: which stream's work a GPU begins first if it has room for only one. Work that has begun is not
// interrupted. The host's streams are threads, and have one priority.
#ifndef FSDP_TENSOR_STREAM_PRIORITY_H_
#define FSDP_TENSOR_STREAM_PRIORITY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// On a GPU, kNormal is the lowest priority of the device and kHigh its highest.
enum class StreamPriority : uint8_t { kNormal, kHigh };

// Optional interface, found by dynamic_cast: a Device whose streams have priorities also implements this.
class PriorityDevice {
 public:
  virtual ~PriorityDevice() = default;
  // As Device::CreateStream, which gives kNormal.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStreamOf(StreamPriority priority, std::string name) = 0;
};

// A new stream of kHigh priority, or an ordinary one if the device has no priorities. For communication that compute
// waits for. Returns the errors of Device::CreateStream.
inline absl::StatusOr<std::unique_ptr<Stream>> CreateUrgentStream(Device& device, std::string name) {
  auto* const with_priorities = dynamic_cast<PriorityDevice*>(&device);
  return with_priorities != nullptr ? with_priorities->CreateStreamOf(StreamPriority::kHigh, std::move(name))
                                    : device.CreateStream(std::move(name));
}

}  // namespace fsdp

#endif  // FSDP_TENSOR_STREAM_PRIORITY_H_
