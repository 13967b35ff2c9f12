// SPDX-License-Identifier: Apache-2.0
//
// DeviceScaledLoss: the gradient of a loss times a scale that is in the device's memory, read in stream order. The host
// need not know the scale when it issues the loss, so a gradient scaler may change it on the device, also in a graph.
#ifndef FSDP_NN_OPS_DEVICE_SCALED_LOSS_H_
#define FSDP_NN_OPS_DEVICE_SCALED_LOSS_H_

#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// A scale of scale / divisor.
struct DeviceScale {
  Tensor scale;       // one float32
  float divisor = 1;  // the number of micro-batches
};

// Optional interface, found by dynamic_cast: LayerOps of a device that has such a kernel also implement this.
class DeviceScaledLoss {
 public:
  virtual ~DeviceScaledLoss() = default;

  // LayerOps::CrossEntropyWithGradient, with the bits that it has for the same scale. Operands are checked by the
  // caller (nn/cross_entropy_loss.h).
  virtual void CrossEntropyWithScaledGradient(const Tensor& logits, const Tensor& targets, const DeviceScale& scale,
                                              const Tensor& loss, const Tensor& statistics, Stream& stream) const = 0;
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_DEVICE_SCALED_LOSS_H_
