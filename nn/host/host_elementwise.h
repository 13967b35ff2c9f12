// SPDX-License-Identifier: Apache-2.0
//
// The host's elementwise kernels. They run immediately on the calling thread. Tensors have one dtype, float32, bfloat16
// or float16, and one numel (the caller checks), and may be at any address; each element is computed in float32 and
// rounded once. An output may be an input, and may not overlap one otherwise.
#ifndef FSDP_NN_HOST_HOST_ELEMENTWISE_H_
#define FSDP_NN_HOST_HOST_ELEMENTWISE_H_

#include <cstdint>

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// out = a + b; out may be a or b.
void HostAdd(const Tensor& a, const Tensor& b, const Tensor& out);

// sum[i] += term[i] rounded to `dtype`.
// For sums of 16-bit terms that stay float32: `sum` and `term` are float32.
void HostAddRounded(DType dtype, const float* term, float* sum, int64_t n);

// out = f(x), and grad_x = grad_out * f'(x). GELU's tanh form is computed as x * sigmoid(2 u), which is the same
// function without the cancellation of 1 + tanh(u).
void HostActivate(ActivationKind kind, const Tensor& x, const Tensor& out);
void HostActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x);

// out = f(gate) * up, with f(gate) rounded to the dtype, and its gradients, rounded as PyTorch's autograd rounds.
void HostActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out);
void HostActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_ELEMENTWISE_H_
