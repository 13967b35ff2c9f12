// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm over the last dimension, with weight (starts at 1) and bias (starts at 0).
#ifndef FSDP_NN_LAYER_NORM_H_
#define FSDP_NN_LAYER_NORM_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

class LayerNorm final : public Module {
 public:
  LayerNorm(int64_t normalized_dim, double eps);

  std::string_view type_name() const override { return "LayerNorm"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
  float eps_;
};

}  // namespace fsdp

#endif  // FSDP_NN_LAYER_NORM_H_
