// SPDX-License-Identifier: Apache-2.0
//
// Functions that autograd calls before and after it accumulates into one parameter, and the dtype of the gradient.
#ifndef FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
#define FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>

namespace fsdp {

// Autograd holds it weakly, so the caller must keep it.
using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Hooks the accumulation into `leaf`, a leaf that requires a gradient. `before` gets the gradient to be added, and is
// true if it has dealt with it. It and `after` run on autograd's thread, and may throw.
Accumulator HookAccumulation(const at::Tensor& leaf, std::function<bool(const at::Tensor& gradient)> before,
                             std::function<void()> after);

// By default autograd casts a gradient to its leaf's dtype. Turns that off for this leaf, if this LibTorch has
// set_grad_dtype.
void KeepGradientsWide(const at::Tensor& leaf, Accumulator& accumulator);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
