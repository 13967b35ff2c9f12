// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/torch_module_trees.h"

#include <string>
#include <string_view>
#include <utility>

namespace fsdp {
namespace {

// "torch::nn::LinearImpl" -> "Linear", "(anonymous namespace)::BlockImpl" -> "Block"; for CalledImpl<BlockImpl, ...>
// (called_module.h) the name of its module.
std::string ClassName(std::string_view name) {
  constexpr std::string_view kCalled = "fsdp::CalledImpl<";
  if (name.substr(0, kCalled.size()) == kCalled) name = name.substr(kCalled.size(), name.find(',') - kCalled.size());
  if (const size_t arguments = name.find('<'); arguments != std::string_view::npos) name = name.substr(0, arguments);
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) name.remove_prefix(colon + 1);
  if (name.size() > 4 && name.substr(name.size() - 4) == "Impl") name.remove_suffix(4);
  return std::string(name);
}

}  // namespace

ModuleTree TreeOf(torch::nn::Module& module) {
  ModuleTree tree;
  tree.type_name = ClassName(module.name());
  tree.original = &module;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) tree.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) tree.buffers.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_children()) tree.children.emplace_back(item.key(), TreeOf(*item.value()));
  return tree;
}

ModuleTree TreeOf(torch::jit::Module& module) {
  ModuleTree tree;
  tree.type_name = module.type()->name()->name();
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tree.parameters.emplace_back(item.name, item.value);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) tree.buffers.emplace_back(item.name, item.value);
  for (const auto& item : module.named_children()) {
    torch::jit::Module child = item.value;
    tree.children.emplace_back(item.name, TreeOf(child));
  }
  return tree;
}

}  // namespace fsdp
