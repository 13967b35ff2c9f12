// SPDX-License-Identifier: Apache-2.0
//
// DeviceId: the device that holds some memory, as in torch.device: a type, and an index among the devices of that type.
#ifndef FSDP_TENSOR_DEVICE_ID_H_
#define FSDP_TENSOR_DEVICE_ID_H_

#include <cstdint>
#include <string>

namespace fsdp {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct DeviceId {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  // 0 of the host

  friend bool operator==(const DeviceId& a, const DeviceId& b) { return a.type == b.type && a.index == b.index; }
  friend bool operator!=(const DeviceId& a, const DeviceId& b) { return !(a == b); }
};

// "cpu", "cuda:0".
inline std::string DeviceName(const DeviceId& id) {
  return id.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(id.index);
}

}  // namespace fsdp

#endif  // FSDP_TENSOR_DEVICE_ID_H_
