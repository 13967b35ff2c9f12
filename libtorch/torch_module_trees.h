// SPDX-License-Identifier: Apache-2.0
//
// ModuleTrees of the two kinds of modules in LibTorch, and predicates on mirrors by the class of the original.
#ifndef FSDP_LIBTORCH_TORCH_MODULE_TREES_H_
#define FSDP_LIBTORCH_TORCH_MODULE_TREES_H_

#include <torch/nn/module.h>
#include <torch/script.h>

#include "fsdp/libtorch/mirror_module.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// The tensors of `module`, by reference. The tree keeps them alive, but not the module.
ModuleTree TreeOf(torch::nn::Module& module);
ModuleTree TreeOf(torch::jit::Module& module);

// Holds for mirrors of torch::nn::Modules that are one of `Classes` (the Impl classes), or derived from one: a
// ModulePredicate, for wrap policies. Modules of TorchScript have no class: use HasTypeName.
template <typename... Classes>
auto IsAnyTorch() {
  return [](const Module& module) {
    const auto* mirror = dynamic_cast<const MirrorModule*>(&module);
    if (mirror == nullptr || mirror->original() == nullptr) return false;
    return ((dynamic_cast<const Classes*>(mirror->original()) != nullptr) || ...);
  };
}

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TORCH_MODULE_TREES_H_
