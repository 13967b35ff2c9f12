// SPDX-License-Identifier: Apache-2.0
//
// Norms over the last dimension: LayerNorm and RmsNorm. Inputs [..., normalized_dim], float32, bfloat16 or float16;
// statistics are kept in float64. kInvalidArgument for another last dimension. norm.cc has the formulas.
//
// A norm can do the preceding residual addition in its own kernels, with the same bits (LayerOps::AddLayerNorm):
//
//   norm->Forward(TensorList{x, residual}, tape)              {norm(sum), sum}, with sum = x + residual
//   norm->Backward(TensorList{grad_normed, grad_sum}, tape)   {the gradient of sum}
#ifndef FSDP_NN_NORM_H_
#define FSDP_NN_NORM_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

// The part that both norms share: the forms with a residual. Backward of two gradients may follow either forward; the
// second is the gradient of the input, or of the sum, along the path that bypasses the norm.
class Norm : public Module {
 protected:
  explicit Norm(int64_t normalized_dim, double eps);

  // Parameter: weight [normalized_dim], which starts at 1. `eps` is added under the root.
  const std::shared_ptr<Parameter> weight_;
  const float eps_;

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) final;
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grad_outputs, Tape& tape) final;

  // The norm of the sum, or of input.x if input.sum is undefined, and its saves for backward.
  virtual absl::StatusOr<Tensor> NormForward(const ResidualSum& input, Tape& tape) = 0;
  // grad_around may be undefined.
  virtual absl::StatusOr<Tensor> NormBackward(const Tensor& grad_output, const Tensor& grad_around, Tape& tape) = 0;
};

// Rows to mean 0 and variance 1, then a weight that starts at 1 and a bias that starts at 0, as torch.nn.LayerNorm.
// mean and rstd of each row are kept for backward with the input.
class LayerNorm final : public Norm {
 public:
  // Parameters: weight and bias [normalized_dim]. `eps` is added to the variance under the root.
  LayerNorm(int64_t normalized_dim, double eps);

  std::string_view type_name() const override { return "LayerNorm"; }

 private:
  // Backward needs the weight bound again; the gradient of a frozen parameter is not computed.
  absl::StatusOr<Tensor> NormForward(const ResidualSum& input, Tape& tape) override;
  absl::StatusOr<Tensor> NormBackward(const Tensor& grad_output, const Tensor& grad_around, Tape& tape) override;

  const std::shared_ptr<Parameter> bias_;
};

// Hugging Face's LlamaRMSNorm: it rounds to the compute dtype before it multiplies by the weight, whereas
// torch.nn.RMSNorm rounds afterwards. The weight starts at 1; there is no bias. rstd of each row is kept for backward
// with the input.
class RmsNorm final : public Norm {
 public:
  // Parameter: weight [normalized_dim]. `eps` is added to the mean square under the root.
  RmsNorm(int64_t normalized_dim, double eps) : Norm(normalized_dim, eps) {}

  std::string_view type_name() const override { return "LlamaRMSNorm"; }

 private:
  absl::StatusOr<Tensor> NormForward(const ResidualSum& input, Tape& tape) override;
  absl::StatusOr<Tensor> NormBackward(const Tensor& grad_output, const Tensor& grad_around, Tape& tape) override;
};

}  // namespace fsdp

#endif  // FSDP_NN_NORM_H_
