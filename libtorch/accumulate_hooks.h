// SPDX-License-Identifier: Apache-2.0
//
// Functions that autograd calls around its accumulation into one parameter.
#ifndef FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
#define FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>

namespace fsdp {

// Autograd holds it weakly: it must be kept.
using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Of `leaf`, a leaf that requires a gradient. `before` and `after` run on autograd's thread, and may throw.
Accumulator HookAccumulation(const at::Tensor& leaf, std::function<void()> before, std::function<void()> after);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_ACCUMULATE_HOOKS_H_
