// SPDX-License-Identifier: Apache-2.0
//
// The registry through which a library of kernels adds a kind of device to LayerOpsFor (nn/device_layer_ops.h).
#ifndef FSDP_NN_OPS_REGISTERED_LAYER_OPS_H_
#define FSDP_NN_OPS_REGISTERED_LAYER_OPS_H_

#include <memory>

#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

using LayerOpsFactory = std::unique_ptr<const LayerOps> (*)(const Device& device);

// Registers the kernels for devices of `type`. Call from a static initialiser of the library that has the kernels, so
// that linking it is enough. Always returns true, as the value of the initialised variable. Not thread-safe.
bool RegisterLayerOps(DeviceType type, LayerOpsFactory create);

// The registered factory for `type`; null if the program links none. Thread-safe after main has begun.
LayerOpsFactory RegisteredLayerOps(DeviceType type);

}  // namespace fsdp

#endif  // FSDP_NN_OPS_REGISTERED_LAYER_OPS_H_
