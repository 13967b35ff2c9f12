// SPDX-License-Identifier: Apache-2.0
//
// Three kinds of policy. A policy object decides only by the module, and names by its name, so one pass over all
// modules in order is enough. A function also needs the number of elements that a module's children left unwrapped, so
// the children are decided first: _recursive_wrap of wrap.py, a post-order walk. The result is in the order of names,
// parents first, under both.
//
// Modules that mixed precision leaves out (batch norms) become separate units under every kind, in full precision: a
// unit has one compute dtype.
#include "fsdp/fsdp/wrap/auto_wrap.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/module_names.h"

namespace fsdp {
namespace {

// How many names each parameter has below `module`.
std::map<const Parameter*, int> NameCounts(Module& module) {
  std::map<const Parameter*, int> counts;
  for (const auto& [name, parameter] : module.NamedParameters()) ++counts[parameter.get()];
  return counts;
}

// wrap.py: _recursive_wrap.
class RecursiveWrap {
 public:
  RecursiveWrap(const WrapFunction& policy, Module& root, const IgnoredStates& ignored)
      : policy_(policy), ignored_(ignored), counts_(NameCounts(root)) {
    Visit(root, /*is_root=*/true);
  }

  bool selected(const Module& module) const { return selected_.count(&module) != 0; }

 private:
  // Returns how many elements of `module` and below are in units now, its own unit included.
  int64_t Visit(Module& module, bool is_root) {
    const int64_t numel = ManagedNumel(module, ignored_);
    const bool shares = SharesWithOutside(module);
    if (!policy_({.module = module, .recurse = true, .nonwrapped_numel = numel, .shares_parameters = shares})) return 0;
    int64_t wrapped = 0;
    for (const auto& [name, child] : module.children()) {
      if (!ignored_.contains(*child)) wrapped += Visit(*child, /*is_root=*/false);
    }
    if (is_root) return wrapped;
    if (!policy_({.module = module, .nonwrapped_numel = numel - wrapped, .shares_parameters = shares})) return wrapped;
    selected_.insert(&module);
    return numel;
  }

  // True if some parameter of `module` has a name outside it as well.
  bool SharesWithOutside(Module& module) const {
    for (const auto& [parameter, count] : NameCounts(module)) {
      if (counts_.at(parameter) != count && !ignored_.contains(*parameter)) return true;
    }
    return false;
  }

  const WrapFunction& policy_;
  const IgnoredStates& ignored_;
  const std::map<const Parameter*, int> counts_;
  std::set<const Module*> selected_;
};

absl::Status CheckNotSharded(const std::vector<Module::NamedModule>& below) {
  for (const auto& [name, module] : below) {
    if (module->hooks() == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("module \"", name,
                     "\" has been sharded already: expected none below a module that is wrapped by "
                     "an auto_wrap_policy; wrap by hand or by policy, not both"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<WrappedModule>> AutoWrap(Module& root, const FsdpOptions& options,
                                                    const IgnoredStates& ignored) {
  std::vector<WrappedModule> wrapped;
  const WrapPolicy& policy = options.auto_wrap_policy;
  if (!policy) return wrapped;
  std::vector<Module::NamedModule> below = root.NamedModules();
  below.erase(below.begin());  // the root itself
  FSDP_RETURN_IF_ERROR(CheckNotSharded(below));

  const MixedPrecision& mixed_precision = options.mixed_precision;
  const ModulePredicate keeps_full_precision =
      mixed_precision.enabled() ? mixed_precision.module_classes_to_ignore : HasTypeName({});
  std::optional<RecursiveWrap> by_function;
  const WrapFunction function = policy.function() == nullptr ? WrapFunction() : *policy.function();
  const WrapFunction with_ignored = OrWrapPolicy({function, LambdaWrapPolicy(keeps_full_precision)});
  if (function) by_function.emplace(mixed_precision.enabled() ? with_ignored : function, root, ignored);
  std::vector<Module*> named;
  if (policy.names() != nullptr) {
    FSDP_ASSIGN_OR_RETURN(named, ModulesByName(root, policy.names()->patterns));
  }

  for (auto& [name, module] : below) {
    if (ignored.contains(*module)) continue;
    std::optional<UnitOverrides> overrides;
    if (by_function.has_value() && by_function->selected(*module)) overrides.emplace();
    if (std::find(named.begin(), named.end(), module) != named.end()) overrides.emplace();
    if (policy.decide() != nullptr) overrides = (*policy.decide())(*module);
    if (keeps_full_precision(*module)) {
      overrides = UnitOverrides{.mixed_precision = MixedPrecision(), .keep_full_precision = true};
    }
    if (overrides.has_value()) wrapped.push_back({name, module, *std::move(overrides)});
  }
  return wrapped;
}

}  // namespace fsdp
