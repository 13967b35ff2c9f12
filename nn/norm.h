// SPDX-License-Identifier: Apache-2.0
//
// Norms over the last dimension: LayerNorm and RmsNorm. Inputs [..., normalized_dim], float32, bfloat16 or float16;
// statistics are kept in float64. kInvalidArgument for another last dimension. norm.cc has the formulas.
#ifndef FSDP_NN_NORM_H_
#define FSDP_NN_NORM_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

// Rows to mean 0 and variance 1, then a weight that starts at 1 and a bias that starts at 0, as torch.nn.LayerNorm.
// mean and rstd of each row are kept for backward with the input.
class LayerNorm final : public Module {
 public:
  // Parameters: weight and bias [normalized_dim]. `eps` is added to the variance under the root.
  LayerNorm(int64_t normalized_dim, double eps);

  std::string_view type_name() const override { return "LayerNorm"; }

 private:
  // Backward needs the weight bound again; the gradient of a frozen parameter is not computed.
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
  float eps_;
};

// Hugging Face's LlamaRMSNorm: it rounds to the compute dtype before it multiplies by the weight, whereas
// torch.nn.RMSNorm rounds afterwards. The weight starts at 1; there is no bias. rstd of each row is kept for backward
// with the input.
class RmsNorm final : public Module {
 public:
  // Parameter: weight [normalized_dim]. `eps` is added to the mean square under the root.
  RmsNorm(int64_t normalized_dim, double eps);

  std::string_view type_name() const override { return "LlamaRMSNorm"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  float eps_;
};

}  // namespace fsdp

#endif  // FSDP_NN_NORM_H_
