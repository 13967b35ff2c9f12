// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b (Linear, W [out, in]) or y = x W + b (Conv1D, W [in, out]), on x as rows [M, in]. Backward:
//
//   grad_x = grad_y W (or grad_y W^T)
//   grad_W += grad_y^T x (or x^T grad_y)
//   grad_b += sum of rows of grad_y
//
// An adapter adds s (x A^T) B^T. Its factor s scales the product of few columns, forward and backward, so that the
// adapter costs no pass over y beyond its sum.
//
// The two layers differ only in the transpose flags: the product reads either layout in place, so a weight keeps the
// layout that its checkpoint has. Products and sums of a gradient go into the gradient buffer itself, which the first
// of a backward need not read (Parameter::GradToWrite); a parameter that is frozen costs neither.
#include "fsdp/nn/linear.h"

#include <cmath>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// The gradient of `weight` (+)= a^T b. Without rows there is no product that could write it.
absl::Status MultiplyGrad(const Tensor& a, const Tensor& b, Parameter& weight, Tape& tape) {
  if (a.shape().dim(0) == 0) return weight.Grad().status();
  FSDP_ASSIGN_OR_RETURN(const ParameterGrad to, weight.GradToWrite());
  tape.ops().Matmul(a, b, Tensor(), to.grad, {.transpose_a = true, .accumulate = to.accumulate}, tape.stream());
  return absl::OkStatus();
}

}  // namespace

// The order of registration is the order in flat units and in state dicts: weight, then bias.
Linear::Linear(int64_t in_features, int64_t out_features, const Initializer& initializer, bool bias)
    : weight_(AddParameter("weight", {out_features, in_features}, initializer)),
      bias_(bias ? AddParameter("bias", {out_features}, Initializer::Constant(0)) : nullptr) {}

Linear::Linear(std::shared_ptr<Parameter> tied_weight) : weight_(std::move(tied_weight)) {
  AddSharedParameter("weight", weight_);
}

void Linear::AddLora(int64_t rank, float alpha) {
  const int64_t out_features = weight_->shape.dim(0), in_features = weight_->shape.dim(1);
  const auto stddev = static_cast<float>(1 / std::sqrt(static_cast<double>(in_features)));
  lora_a_ = AddChild("lora_A", std::make_unique<Linear>(in_features, rank, Initializer::Normal(0, stddev)));
  lora_b_ = AddChild("lora_B", std::make_unique<Linear>(rank, out_features, Initializer::Constant(0)));
  lora_divisor_ = static_cast<double>(rank) / alpha;
  weight_->requires_grad = false;
  if (bias_ != nullptr) bias_->requires_grad = false;
}

absl::Status Linear::AddLoraOutput(const Tensor& x, const Tensor& out, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const Tensor low, lora_a_->Forward(x, tape));
  tape.device().ops().CastDivide(low, low, lora_divisor_, tape.stream());
  FSDP_ASSIGN_OR_RETURN(const Tensor delta, lora_b_->Forward(low, tape));
  tape.ops().Add(out, delta, out, tape.stream());
  return absl::OkStatus();
}

// The gradient of x through the adapter.
absl::StatusOr<Tensor> Linear::LoraBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_low, lora_b_->Backward(grad_output, tape));
  tape.device().ops().CastDivide(grad_low, grad_low, lora_divisor_, tape.stream());
  return lora_a_->Backward(grad_low, tape);
}

absl::StatusOr<Tensor> Linear::DoForward(const Tensor& x, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("linear", x, weight_->shape.dim(1)));
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  Tensor bias;
  if (bias_ != nullptr && adds_bias_) {
    FSDP_ASSIGN_OR_RETURN(bias, bias_->Data());
  }
  const Shape shape = WithLastDim(x.shape(), weight_->shape.dim(0));
  const bool padded = pads_output_rows_ && lora_b_ == nullptr;  // a sum reads no padded rows
  FSDP_ASSIGN_OR_RETURN(Tensor out, padded ? tape.EmptyRows(x.dtype(), shape) : tape.Empty(x.dtype(), shape));
  tape.ops().Matmul(AsRows(x), weight, bias, AsRows(out), {.transpose_b = true}, tape.stream());
  tape.Save(x);
  if (lora_b_ != nullptr) FSDP_RETURN_IF_ERROR(AddLoraOutput(x, out, tape));
  return out;
}

absl::StatusOr<Tensor> Linear::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("linear backward", grad_output, weight_->shape.dim(0)));
  Tensor grad_through_lora;
  if (lora_b_ != nullptr) {
    FSDP_ASSIGN_OR_RETURN(grad_through_lora, LoraBackward(grad_output, tape));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  const Tensor grad_rows = AsRows(grad_output);
  tape.ops().Matmul(grad_rows, weight, Tensor(), AsRows(grad_x), {}, tape.stream());
  if (weight_->requires_grad) {
    FSDP_RETURN_IF_ERROR(MultiplyGrad(grad_rows, AsRows(x), *weight_, tape));
  }
  if (bias_ != nullptr && bias_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(const ParameterGrad grad_bias, bias_->GradToWrite());
    tape.ops().BiasBackward(grad_rows, grad_bias, tape.stream());
  }
  if (grad_through_lora.defined()) tape.ops().Add(grad_x, grad_through_lora, grad_x, tape.stream());
  return grad_x;
}

Conv1D::Conv1D(int64_t in_features, int64_t out_features, const Initializer& initializer)
    : weight_(AddParameter("weight", {in_features, out_features}, initializer)),
      bias_(AddParameter("bias", {out_features}, Initializer::Constant(0))) {}

absl::StatusOr<Tensor> Conv1D::DoForward(const Tensor& x, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("conv1d", x, weight_->shape.dim(0)));
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor bias, bias_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), WithLastDim(x.shape(), weight_->shape.dim(1))));
  tape.ops().Matmul(AsRows(x), weight, bias, AsRows(out), {}, tape.stream());
  tape.Save(x);
  return out;
}

absl::StatusOr<Tensor> Conv1D::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("conv1d backward", grad_output, weight_->shape.dim(1)));
  FSDP_ASSIGN_OR_RETURN(Tensor x, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  const Tensor grad_rows = AsRows(grad_output);
  tape.ops().Matmul(grad_rows, weight, Tensor(), AsRows(grad_x), {.transpose_b = true}, tape.stream());
  if (weight_->requires_grad) {
    FSDP_RETURN_IF_ERROR(MultiplyGrad(AsRows(x), grad_rows, *weight_, tape));
  }
  if (bias_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(const ParameterGrad grad_bias, bias_->GradToWrite());
    tape.ops().BiasBackward(grad_rows, grad_bias, tape.stream());
  }
  return grad_x;
}

}  // namespace fsdp
