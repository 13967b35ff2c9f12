// SPDX-License-Identifier: Apache-2.0
//
// For tests: a host device that models run on, the loss of a model and its gradient.
#ifndef FSDP_MODELS_LANGUAGE_MODEL_TESTUTIL_H_
#define FSDP_MODELS_LANGUAGE_MODEL_TESTUTIL_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {

// Elements of all parameters, a shared one once.
inline int64_t CountParameters(Module& module) {
  int64_t count = 0;
  for (const auto& [name, parameter] : module.NamedParameters()) {
    if (parameter->fqn == name) count += parameter->shape.numel();
  }
  return count;
}

// Each test has its own device, on which nothing else runs.
class LanguageModelTest : public testing::Test {
 protected:
  // The mean loss of `tokens`, of `shape` [B, T], as their own targets. With `backward`, its gradients are added to the
  // parameters' gradients. Blocks until the stream is done. Precondition: the parameters are materialised.
  absl::StatusOr<double> Loss(Module& model, const std::vector<int32_t>& tokens, const Shape& shape, bool backward) {
    FSDP_ASSIGN_OR_RETURN(const Tensor input, Tensor::Empty(*device_, DType::kInt32, shape));
    std::copy(tokens.begin(), tokens.end(), input.data_as<int32_t>());
    Tape tape(*stream_, *ops_, backward);
    const CrossEntropyLoss criterion;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(input, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor loss, criterion.Forward(logits, input, tape));
    if (backward) {
      FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, criterion.Backward(1, tape));
      FSDP_RETURN_IF_ERROR(model.Backward(grad_logits, tape).status());
    }
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return *loss.data_as<float>();
  }

  // The loss of `model`, which this materialises. Expects that the gradient fits, by finite differences of the float32
  // loss along it; `distance` is in parameter space.
  absl::StatusOr<double> LossWhoseGradientFits(Module& model, double distance) {
    FSDP_RETURN_IF_ERROR(model.Materialize(*device_, /*seed=*/5));
    const std::vector<int32_t> tokens = {1, 10, 3, 3, 0, 7, 2, 9, 4, 1};
    FSDP_ASSIGN_OR_RETURN(const double loss, Loss(model, tokens, {2, 5}, /*backward=*/true));
    double squares = 0;
    for (const auto& [name, parameter] : model.NamedParameters()) {
      if (parameter->fqn != name) continue;
      for (int64_t i = 0; i < parameter->grad.numel(); ++i) squares += std::pow(parameter->grad.data_as<float>()[i], 2);
    }
    const double step = distance / std::sqrt(squares);
    const auto move = [&](double factor) {
      for (const auto& [name, parameter] : model.NamedParameters()) {
        if (parameter->fqn != name) continue;
        for (int64_t i = 0; i < parameter->data.numel(); ++i) {
          parameter->data.data_as<float>()[i] +=
              static_cast<float>(factor * step * parameter->grad.data_as<float>()[i]);
        }
      }
    };
    move(1);
    FSDP_ASSIGN_OR_RETURN(const double up, Loss(model, tokens, {2, 5}, /*backward=*/false));
    move(-2);
    FSDP_ASSIGN_OR_RETURN(const double down, Loss(model, tokens, {2, 5}, /*backward=*/false));
    EXPECT_NEAR((up - down) / (2 * step), squares, 2e-3 * squares);
    return loss;
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

}  // namespace fsdp

#endif  // FSDP_MODELS_LANGUAGE_MODEL_TESTUTIL_H_
