// SPDX-License-Identifier: Apache-2.0
//
// y = f(x), elementwise, and backward grad_x = grad_y * f'(x). Only x is kept: f' is cheaper to compute again from x
// than a second activation-sized tensor is to store. The four f are in nn/ops/kernel_options.h.
#include "fsdp/nn/activation.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// Hugging Face has two names each for the tanh form of GELU and for SiLU; its plain "gelu" is the erf form.
absl::StatusOr<ActivationKind> ParseActivationKind(std::string_view name) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return ActivationKind::kGeluTanh;
  if (name == "gelu") return ActivationKind::kGeluErf;
  if (name == "relu") return ActivationKind::kRelu;
  if (name == "silu" || name == "swish") return ActivationKind::kSilu;
  return absl::UnimplementedError(
      absl::StrCat("activation function \"", std::string(name),
                   "\" is not any of gelu_new, gelu_pytorch_tanh, gelu, relu, silu, swish"));
}

absl::StatusOr<Tensor> Activation::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), x.shape()));
  tape.ops().Activate(kind_, x, out, tape.stream());
  tape.Save(x);
  return out;
}

absl::StatusOr<Tensor> Activation::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  tape.ops().ActivateBackward(kind_, grad_output, x, grad_x, tape.stream());
  return grad_x;
}

}  // namespace fsdp
