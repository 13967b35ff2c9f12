// SPDX-License-Identifier: Apache-2.0
//
// Dropout: each element is 0 with probability p and x / (1 - p) otherwise, as torch.nn.Dropout. Which elements are
// dropped is a pure function of the tape's random state (tape.h): equal on any number of ranks, in any division of a
// batch into micro-batches, on hosts and GPUs, and when activation checkpointing runs the forward again. PyTorch uses
// other generators, so its masks differ. On a tape that does not keep for backward (evaluation), or with p of 0, the
// input is the output.
#ifndef FSDP_NN_DROPOUT_H_
#define FSDP_NN_DROPOUT_H_

#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

class Dropout final : public Module {
 public:
  // `p` is 0 to 1; Forward returns kInvalidArgument for another value.
  explicit Dropout(float p = 0.5f) : p_(p) {}

  std::string_view type_name() const override { return "Dropout"; }

 private:
  // Keeps no tensor of x's size, only the numbers to draw again.
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  const float p_;
};

}  // namespace fsdp

#endif  // FSDP_NN_DROPOUT_H_
