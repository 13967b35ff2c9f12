// SPDX-License-Identifier: Apache-2.0
//
// Hooks on AccumulateGrad nodes, as DistributedDataParallel's reducer uses them.
//
// Sees the gradient before it is added. AccumulateGrad adds nothing if it is passed an undefined one.
#include "fsdp/libtorch/accumulate_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <optional>

namespace fsdp {
namespace {

using torch::autograd::variable_list;

class BeforeAccumulate final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAccumulate(std::function<bool(const at::Tensor&)> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& grads) override { return call_(grads[0]) ? variable_list(1) : grads; }

 private:
  const std::function<bool(const at::Tensor&)> call_;
};

class AfterAccumulate final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulate(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_();
    return outputs;
  }

 private:
  const std::function<void()> call_;
};

// Sets it on the leaf, for accumulators that are made later, and on the one that exists. An older LibTorch has no
// set_grad_dtype: this then does nothing.
template <typename Leaf, typename Node>
void AllowAnyGradientDType(const Leaf& leaf, Node& accumulator) {
  if constexpr (requires { leaf.set_grad_dtype(std::nullopt); }) {
    leaf.set_grad_dtype(std::nullopt);
    accumulator.mutable_input_metadata(0).set_grad_dtype(std::nullopt);
  }
}

}  // namespace

Accumulator HookAccumulation(const at::Tensor& leaf, std::function<bool(const at::Tensor& gradient)> before,
                             std::function<void()> after) {
  at::AutoGradMode grad(true);
  Accumulator accumulator = torch::autograd::impl::grad_accumulator(leaf);
  accumulator->add_pre_hook(std::make_unique<BeforeAccumulate>(std::move(before)));
  accumulator->add_post_hook(std::make_unique<AfterAccumulate>(std::move(after)));
  return accumulator;
}

void KeepGradientsWide(const at::Tensor& leaf, Accumulator& accumulator) { AllowAnyGradientDType(leaf, *accumulator); }

}  // namespace fsdp
