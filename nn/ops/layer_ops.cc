// SPDX-License-Identifier: Apache-2.0
//
// Optional operations of a device in terms of its required ones, and the registry. A library of kernels is linked with
// alwayslink, so its static initialisers run before main and register it; nothing in the program names it. Writes thus
// happen on one thread before main, and reads after, which needs no lock.
#include "fsdp/nn/ops/layer_ops.h"

#include <map>

namespace fsdp {
namespace {

// A function-local static, because other static initialisers fill it before this file's own would run.
std::map<DeviceType, LayerOpsFactory>& Registry() {
  static auto* const registry = new std::map<DeviceType, LayerOpsFactory>;
  return *registry;
}

}  // namespace

void LayerOps::AddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps,
                            const Tensor& out, const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  Add(input.x, input.residual, input.sum, stream);
  LayerNorm(input.sum, weight, bias, eps, out, mean, rstd, stream);
}

void LayerOps::AddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out,
                          const Tensor& rstd, Stream& stream) const {
  Add(input.x, input.residual, input.sum, stream);
  RmsNorm(input.sum, weight, eps, out, rstd, stream);
}

void LayerOps::AddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                    const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                                    const NormGrads& grads, Stream& stream) const {
  LayerNormBackward(grad_out, sum, weight, mean, rstd, grads.x, grads.weight, grads.bias, stream);
  Add(grads.x, grad_sum, grads.x, stream);
}

void LayerOps::AddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                  const Tensor& weight, const Tensor& rstd, const NormGrads& grads,
                                  Stream& stream) const {
  RmsNormBackward(grad_out, sum, weight, rstd, grads.x, grads.weight, stream);
  Add(grads.x, grad_sum, grads.x, stream);
}

bool RegisterLayerOps(DeviceType type, LayerOpsFactory create) {
  Registry()[type] = create;
  return true;
}

LayerOpsFactory RegisteredLayerOps(DeviceType type) {
  const auto found = Registry().find(type);
  return found == Registry().end() ? nullptr : found->second;
}

}  // namespace fsdp
