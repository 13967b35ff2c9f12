// SPDX-License-Identifier: Apache-2.0
//
// The modules around LayerOps' norms. For each row x of C elements, with w the weight and b the bias:
//
//   LayerNorm   h = (x - mean) rstd,  out = h w + b      rstd = 1 / sqrt(variance + eps), the variance biased
//   RmsNorm     h = x rstd,           out = h w          rstd = 1 / sqrt(mean(x^2) + eps)
//
// and backward, with g = grad_out w:
//
//   LayerNorm   grad_x = rstd (g - mean(g) - h mean(g h))
//   RmsNorm     grad_x = rstd (g - h mean(g h))
//   both        grad_w += sum over rows of grad_out h,  grad_b += sum over rows of grad_out
//
// x and the row statistics are kept, and h is computed again from them: keeping h would cost another activation. The
// statistics are float64, one or two for each row, because an error in them is the same in all C elements and does not
// average out in the sums that follow.
#include "fsdp/nn/norm.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"

namespace fsdp {
namespace {

// Undefined, and not computed, for a frozen parameter.
absl::StatusOr<ParameterGrad> GradOf(Parameter& parameter) {
  if (!parameter.requires_grad) return ParameterGrad();
  return parameter.GradToWrite();
}

ResidualSum RowsOf(const ResidualSum& input) { return {AsRows(input.x), AsRows(input.residual), AsRows(input.sum)}; }

absl::Status CheckCount(std::string_view norm, std::string_view what, size_t given) {
  if (given == 1 || given == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(norm), ": ", std::string(what), " takes 1 tensor, or 2 to add, and was given ", given));
}

}  // namespace

Norm::Norm(int64_t normalized_dim, double eps)
    : weight_(AddParameter("weight", {normalized_dim}, Initializer::Constant(1))), eps_(static_cast<float>(eps)) {}

absl::StatusOr<TensorList> Norm::DoForwardList(const TensorList& inputs, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckCount(type_name(), "forward", inputs.size()));
  ResidualSum input = {inputs[0], Tensor(), Tensor()};
  FSDP_RETURN_IF_ERROR(CheckLastDim(type_name(), input.x, weight_->shape.dim(0)));
  if (inputs.size() == 1) {
    FSDP_ASSIGN_OR_RETURN(Tensor normed, NormForward(input, tape));
    return TensorList{std::move(normed)};
  }
  // The caller needs the sum for the path around the norm, so it is an output as well.
  input.residual = inputs[1];
  FSDP_RETURN_IF_ERROR(CheckLastDim(type_name(), input.residual, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(input.sum, tape.Empty(input.x.dtype(), input.x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor normed, NormForward(input, tape));
  return TensorList{std::move(normed), std::move(input.sum)};
}

absl::StatusOr<TensorList> Norm::DoBackwardList(const TensorList& grad_outputs, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckCount(type_name(), "backward", grad_outputs.size()));
  for (const Tensor& grad : grad_outputs) {
    FSDP_RETURN_IF_ERROR(CheckLastDim(type_name(), grad, weight_->shape.dim(0)));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor grad,
                        NormBackward(grad_outputs[0], grad_outputs.size() == 2 ? grad_outputs[1] : Tensor(), tape));
  return TensorList{std::move(grad)};
}

LayerNorm::LayerNorm(int64_t normalized_dim, double eps)
    : Norm(normalized_dim, eps), bias_(AddParameter("bias", {normalized_dim}, Initializer::Constant(0))) {}

absl::StatusOr<Tensor> LayerNorm::NormForward(const ResidualSum& input, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor bias, bias_->Data());
  const int64_t num_rows = AsRows(input.x).shape().dim(0);
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(input.x.dtype(), input.x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor mean, tape.Empty(DType::kFloat64, {num_rows}));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Empty(DType::kFloat64, {num_rows}));
  if (input.sum.defined()) {
    tape.ops().AddLayerNorm(RowsOf(input), weight, bias, eps_, AsRows(out), mean, rstd, tape.stream());
    // Backward reads the input of the norm itself, so the addends are not kept.
    tape.Save(input.sum);
  } else {
    tape.ops().LayerNorm(AsRows(input.x), weight, bias, eps_, AsRows(out), mean, rstd, tape.stream());
    tape.Save(input.x);
  }
  tape.Save(mean);
  tape.Save(rstd);
  return out;
}

absl::StatusOr<Tensor> LayerNorm::NormBackward(const Tensor& grad_output, const Tensor& grad_around, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor mean, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  FSDP_ASSIGN_OR_RETURN(const ParameterGrad grad_weight, GradOf(*weight_));
  FSDP_ASSIGN_OR_RETURN(const ParameterGrad grad_bias, GradOf(*bias_));
  if (grad_around.defined()) {
    tape.ops().AddLayerNormBackward(AsRows(grad_output), AsRows(grad_around), AsRows(x), weight, mean, rstd,
                                    {AsRows(grad_x), grad_weight, grad_bias}, tape.stream());
  } else {
    tape.ops().LayerNormBackward(AsRows(grad_output), AsRows(x), weight, mean, rstd, AsRows(grad_x), grad_weight,
                                 grad_bias, tape.stream());
  }
  return grad_x;
}

absl::StatusOr<Tensor> RmsNorm::NormForward(const ResidualSum& input, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(input.x.dtype(), input.x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Empty(DType::kFloat64, {AsRows(input.x).shape().dim(0)}));
  if (input.sum.defined()) {
    tape.ops().AddRmsNorm(RowsOf(input), weight, eps_, AsRows(out), rstd, tape.stream());
    tape.Save(input.sum);
  } else {
    tape.ops().RmsNorm(AsRows(input.x), weight, eps_, AsRows(out), rstd, tape.stream());
    tape.Save(input.x);
  }
  tape.Save(rstd);
  return out;
}

absl::StatusOr<Tensor> RmsNorm::NormBackward(const Tensor& grad_output, const Tensor& grad_around, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  FSDP_ASSIGN_OR_RETURN(const ParameterGrad grad_weight, GradOf(*weight_));
  if (grad_around.defined()) {
    tape.ops().AddRmsNormBackward(AsRows(grad_output), AsRows(grad_around), AsRows(x), weight, rstd,
                                  {AsRows(grad_x), grad_weight, Tensor()}, tape.stream());
  } else {
    tape.ops().RmsNormBackward(AsRows(grad_output), AsRows(x), weight, rstd, AsRows(grad_x), grad_weight,
                               tape.stream());
  }
  return grad_x;
}

}  // namespace fsdp
