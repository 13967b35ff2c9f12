// SPDX-License-Identifier: Apache-2.0
//
// AddResidual: how a block's branch joins the trunk, forward and backward.
#ifndef FSDP_MODELS_RESIDUAL_H_
#define FSDP_MODELS_RESIDUAL_H_

#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// branch + trunk, in the memory of `branch`, which nobody else may read.
inline Tensor AddResidual(const Tensor& branch, const Tensor& trunk, Tape& tape) {
  tape.ops().Add(branch, trunk, branch, tape.stream());
  return branch;
}

}  // namespace fsdp

#endif  // FSDP_MODELS_RESIDUAL_H_
