// SPDX-License-Identifier: Apache-2.0
//
// PreNormBlock: a transformer block that normalises before each of its halves and adds each to its input:
//
//   middle = x + attention(attention_norm(x))
//   out = middle + mlp(mlp_norm(middle))
//
// The deriving block decides which modules these are, their names and their order; its constructor sets all four.
// Forward and backward are the same for all blocks, here, and keep no tensor beyond those that the four modules save.
#ifndef FSDP_MODELS_PRE_NORM_BLOCK_H_
#define FSDP_MODELS_PRE_NORM_BLOCK_H_

#include "fsdp/nn/module.h"
#include "fsdp/nn/norm.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// x, middle and out have one shape, [B, T, width], and one dtype. No call waits for the device.
class PreNormBlock : public Module {
 protected:
  // Children of this module, which owns them. None may be null when forward runs.
  Norm* attention_norm_ = nullptr;
  Module* attention_ = nullptr;
  Norm* mlp_norm_ = nullptr;
  Module* mlp_ = nullptr;

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) final;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) final;
};

// How a block's branch joins the trunk, forward and backward: branch + trunk, written to the memory of `branch`. No
// other code may read `branch` afterwards.
inline Tensor AddResidual(const Tensor& branch, const Tensor& trunk, Tape& tape) {
  tape.ops().Add(branch, trunk, branch, tape.stream());
  return branch;
}

}  // namespace fsdp

#endif  // FSDP_MODELS_PRE_NORM_BLOCK_H_
