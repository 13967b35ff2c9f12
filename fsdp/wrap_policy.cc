// SPDX-License-Identifier: Apache-2.0
#include "fsdp/wrap_policy.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace fsdp {
namespace {

// How often each parameter is named below `module`.
std::map<Parameter*, int> NameCounts(Module& module) {
  std::map<Parameter*, int> counts;
  for (const auto& [name, parameter] : module.NamedParameters()) ++counts[parameter.get()];
  return counts;
}

// True when some parameter of `module` has names outside it as well.
bool SharesWithOutside(Module& module, const std::map<Parameter*, int>& counts_in_root) {
  for (const auto& [parameter, count] : NameCounts(module)) {
    if (counts_in_root.at(parameter) != count) return true;
  }
  return false;
}

// PyTorch's algorithm (torch/distributed/fsdp/wrap.py, _recursive_wrap), post-order.
class SizeBasedSelection {
 public:
  SizeBasedSelection(Module& root, int64_t min_num_params)
      : min_num_params_(min_num_params), counts_(NameCounts(root)) {
    VisitChildren(root);
  }

  bool selected(Module* module) const { return selected_.count(module) != 0; }

 private:
  static int64_t Numel(Module& module) {
    int64_t numel = 0;
    for (const auto& [parameter, count] : NameCounts(module)) numel += parameter->shape.numel();
    return numel;
  }

  // Elements of `module`'s children that became part of some unit.
  int64_t VisitChildren(Module& module) {
    int64_t wrapped = 0;
    for (const auto& [name, child] : module.children()) wrapped += Visit(*child);
    return wrapped;
  }

  int64_t Visit(Module& module) {
    const int64_t numel = Numel(module);
    if (numel < min_num_params_) return 0;
    const int64_t wrapped = VisitChildren(module);
    const bool container = module.type_name() == "ModuleList";
    if (numel - wrapped < min_num_params_ || container || SharesWithOutside(module, counts_)) return wrapped;
    selected_.insert(&module);
    return numel;
  }

  const int64_t min_num_params_;
  const std::map<Parameter*, int> counts_;
  std::set<Module*> selected_;
};

std::vector<Module::NamedModule> Below(Module& root) {
  std::vector<Module::NamedModule> modules = root.NamedModules();
  modules.erase(modules.begin());  // the root itself
  return modules;
}

}  // namespace

WrapPolicy LambdaWrapPolicy(std::function<bool(Module& module)> predicate) {
  return WrapPolicy([predicate = std::move(predicate)](Module& root) {
    std::vector<WrapPolicy::Selected> selected;
    for (auto& [name, module] : Below(root)) {
      if (predicate(*module)) selected.push_back({std::move(name), module});
    }
    return selected;
  });
}

WrapPolicy SizeBasedWrapPolicy(int64_t min_num_params) {
  return WrapPolicy([min_num_params](Module& root) {
    const SizeBasedSelection selection(root, min_num_params);
    std::vector<WrapPolicy::Selected> selected;
    for (auto& [name, module] : Below(root)) {
      if (selection.selected(module)) selected.push_back({std::move(name), module});
    }
    return selected;
  });
}

}  // namespace fsdp
