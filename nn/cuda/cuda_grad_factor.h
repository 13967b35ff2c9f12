// SPDX-License-Identifier: Apache-2.0
//
// GradFactor: the factor of a loss's gradient, which the host knows or the device's memory holds. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_GRAD_FACTOR_H_
#define FSDP_NN_CUDA_CUDA_GRAD_FACTOR_H_

#include <cuda_runtime.h>

#include "fsdp/nn/ops/device_scaled_loss.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The scale of the loss divided by the number of rows, in the order of the host's divisions.
struct GradFactor {
  float of_host = 0;
  const float* scale = nullptr;  // null: of_host
  float divisor = 1;
  float rows = 1;

  __device__ float Get() const { return scale == nullptr ? of_host : __fdiv_rn(__fdiv_rn(*scale, divisor), rows); }
};

// `grad` is the gradient of the logits, whose rows count.
inline GradFactor FactorOf(float scale, const Tensor& grad) {
  return {.of_host = scale / static_cast<float>(grad.shape().dim(0))};
}

inline GradFactor FactorOf(const DeviceScale& scale, const Tensor& grad) {
  return {.scale = scale.scale.data_as<const float>(),
          .divisor = scale.divisor,
          .rows = static_cast<float>(grad.shape().dim(0))};
}

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_GRAD_FACTOR_H_
