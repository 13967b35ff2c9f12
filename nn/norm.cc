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

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"

namespace fsdp {

LayerNorm::LayerNorm(int64_t normalized_dim, double eps)
    : weight_(AddParameter("weight", {normalized_dim}, Initializer::Constant(1))),
      bias_(AddParameter("bias", {normalized_dim}, Initializer::Constant(0))),
      eps_(static_cast<float>(eps)) {}

absl::StatusOr<Tensor> LayerNorm::DoForward(const Tensor& x, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("layer norm", x, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor bias, bias_->Data());
  const Tensor rows = AsRows(x);
  const int64_t num_rows = rows.shape().dim(0);
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor mean, tape.Empty(DType::kFloat64, {num_rows}));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Empty(DType::kFloat64, {num_rows}));
  tape.ops().LayerNorm(rows, weight, bias, eps_, AsRows(out), mean, rstd, tape.stream());
  tape.Save(x);
  tape.Save(mean);
  tape.Save(rstd);
  return out;
}

absl::StatusOr<Tensor> LayerNorm::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("layer norm backward", grad_output, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor mean, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  Tensor grad_weight;  // stays undefined, and is not computed, for frozen parameters
  Tensor grad_bias;
  if (weight_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(grad_weight, weight_->Grad());
  }
  if (bias_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(grad_bias, bias_->Grad());
  }
  tape.ops().LayerNormBackward(AsRows(grad_output), AsRows(x), weight, mean, rstd, AsRows(grad_x), grad_weight,
                               grad_bias, tape.stream());
  return grad_x;
}

RmsNorm::RmsNorm(int64_t normalized_dim, double eps)
    : weight_(AddParameter("weight", {normalized_dim}, Initializer::Constant(1))), eps_(static_cast<float>(eps)) {}

absl::StatusOr<Tensor> RmsNorm::DoForward(const Tensor& x, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("rms norm", x, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  const Tensor rows = AsRows(x);
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Empty(DType::kFloat64, {rows.shape().dim(0)}));
  tape.ops().RmsNorm(rows, weight, eps_, AsRows(out), rstd, tape.stream());
  tape.Save(x);
  tape.Save(rstd);
  return out;
}

absl::StatusOr<Tensor> RmsNorm::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("rms norm backward", grad_output, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(Tensor rstd, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  Tensor grad_weight;  // stays undefined, and is not computed, for a frozen parameter
  if (weight_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(grad_weight, weight_->Grad());
  }
  tape.ops().RmsNormBackward(AsRows(grad_output), AsRows(x), weight, rstd, AsRows(grad_x), grad_weight, tape.stream());
  return grad_x;
}

}  // namespace fsdp
