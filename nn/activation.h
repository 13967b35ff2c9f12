// SPDX-License-Identifier: Apache-2.0
//
// Activation: an elementwise non-linearity as a module. It has no parameters, keeps its input for backward, and takes
// activations of any shape in float32, bfloat16 or float16.
#ifndef FSDP_NN_ACTIVATION_H_
#define FSDP_NN_ACTIVATION_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/ops/kernel_options.h"

namespace fsdp {

// The kind behind Hugging Face's name in a config: gelu_new and gelu_pytorch_tanh (the tanh form), gelu (the erf form),
// relu, silu and swish (one function). Any other name is kUnimplemented, with a message that lists these.
absl::StatusOr<ActivationKind> ParseActivationKind(std::string_view name);

// Output and gradient have the shape and dtype of the input; each element is computed in float32 and rounded once.
class Activation final : public Module {
 public:
  explicit Activation(ActivationKind kind) : kind_(kind) {}

  std::string_view type_name() const override { return "Activation"; }

 private:
  // Keeps x on the tape; backward computes the derivative again from x.
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  ActivationKind kind_;
};

}  // namespace fsdp

#endif  // FSDP_NN_ACTIVATION_H_
