// SPDX-License-Identifier: Apache-2.0
//
// As DistributedDataParallel's reducer does.
#include "fsdp/libtorch/accumulate_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>

namespace fsdp {
namespace {

using torch::autograd::variable_list;

class BeforeAccumulate final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAccumulate(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& grads) override {
    call_();
    return grads;
  }

 private:
  const std::function<void()> call_;
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

}  // namespace

Accumulator HookAccumulation(const at::Tensor& leaf, std::function<void()> before, std::function<void()> after) {
  at::AutoGradMode grad(true);
  Accumulator accumulator = torch::autograd::impl::grad_accumulator(leaf);
  accumulator->add_pre_hook(std::make_unique<BeforeAccumulate>(std::move(before)));
  accumulator->add_post_hook(std::make_unique<AfterAccumulate>(std::move(after)));
  return accumulator;
}

}  // namespace fsdp
