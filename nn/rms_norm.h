// SPDX-License-Identifier: Apache-2.0
//
// RmsNorm over the last dimension, with a weight that starts at 1: Hugging Face's LlamaRMSNorm, which rounds to the
// compute dtype before it multiplies by the weight (torch.nn.RMSNorm does so afterwards).
#ifndef FSDP_NN_RMS_NORM_H_
#define FSDP_NN_RMS_NORM_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

class RmsNorm final : public Module {
 public:
  RmsNorm(int64_t normalized_dim, double eps);

  std::string_view type_name() const override { return "LlamaRMSNorm"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  float eps_;
};

}  // namespace fsdp

#endif  // FSDP_NN_RMS_NORM_H_
