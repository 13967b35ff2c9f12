// SPDX-License-Identifier: Apache-2.0
//
// Functions that autograd calls around its accumulation into one parameter, and the dtype of what it accumulates.
#ifndef FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
#define FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>

namespace fsdp {

// Autograd holds it weakly: it must be kept.
using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Of `leaf`, a leaf that requires a gradient. `before`, which is given what will be added, and `after` run on
// autograd's thread, and may throw.
Accumulator HookAccumulation(const at::Tensor& leaf, std::function<void(const at::Tensor& gradient)> before,
                             std::function<void()> after);

// Autograd casts what it accumulates into a leaf to the leaf's dtype; from now on not for this one, if this LibTorch
// has set_grad_dtype.
void KeepGradientsWide(const at::Tensor& leaf, Accumulator& accumulator);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
