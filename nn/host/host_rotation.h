// SPDX-License-Identifier: Apache-2.0
//
// The host's rotary position embedding; see RotateQkv in nn/ops/layer_ops.h for the contract. Runs immediately on the
// calling thread.
#ifndef FSDP_NN_HOST_HOST_ROTATION_H_
#define FSDP_NN_HOST_HOST_ROTATION_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// All of one dtype, float32, bfloat16 or float16, dense, with the sizes of `shape`; `rotation` as RotaryEmbedding makes
// it. Backward takes the gradient apart again and rotates by the negated angle.
void HostRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv);

void HostRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_ROTATION_H_
