// SPDX-License-Identifier: Apache-2.0
//
// WrapPolicy: which submodules of a root become FSDP units. The policies correspond to PyTorch's wrap.py; auto_wrap.h
// applies them.
//
//   .auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>()
//   .auto_wrap_policy = SizeBasedWrapPolicy(20'000)
//   .auto_wrap_policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
//     if (module.type_name() == "Linear") return UnitOverrides{.sharding_strategy = ShardingStrategy::kShardGradOp};
//     if (module.type_name() == "GPT2Block") return UnitOverrides();  // as the root
//     return std::nullopt;                                            // not a unit
//   })
#ifndef FSDP_FSDP_OPTIONS_WRAP_POLICY_H_
#define FSDP_FSDP_OPTIONS_WRAP_POLICY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/fsdp/options/module_predicate.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// The question that a callable policy answers about one module. Each module gets two questions: whether to recurse,
// before its children, and whether to wrap it, after them.
struct WrapCandidate {
  Module& module;

  // True: "look below `module`?"; if the answer is no, it and all modules below it are not wrapped. False: "wrap it?"
  bool recurse = false;

  // Elements of the parameters of `module` and below that are not ignored. If `recurse` is false, without the
  // parameters of units below `module`.
  int64_t nonwrapped_numel = 0;

  // True if some parameter below is shared with a module outside of `module`. A unit must have all names of a
  // parameter, so wrapping `module` would be refused.
  bool shares_parameters = false;
};

using WrapFunction = std::function<bool(const WrapCandidate& question)>;

// nullopt: `module` is not a unit. Otherwise the options in which its unit differs from the root's.
using CustomWrapFunction = std::function<std::optional<UnitOverrides>(Module& module)>;

// The modules that nn/module_names.h finds by these patterns. A pattern that matches no module is an error of the
// wrapping.
struct ModuleNamePatterns {
  std::vector<std::string> patterns;
};

// A callable policy (PyTorch's functions), a policy object (ModuleWrapPolicy, CustomPolicy), names, or no policy: the
// root is the only unit. A value type.
class WrapPolicy final {
 public:
  WrapPolicy() = default;
  WrapPolicy(WrapFunction function) : rule_(std::move(function)) {}  // NOLINT: a function is a policy
  explicit WrapPolicy(CustomWrapFunction decide) : rule_(std::move(decide)) {}
  explicit WrapPolicy(ModuleNamePatterns names) : rule_(std::move(names)) {}

  explicit operator bool() const { return rule_.index() != 0; }

  // Each is null if the policy is of another kind.
  const WrapFunction* function() const { return std::get_if<WrapFunction>(&rule_); }
  const CustomWrapFunction* decide() const { return std::get_if<CustomWrapFunction>(&rule_); }
  const ModuleNamePatterns* names() const { return std::get_if<ModuleNamePatterns>(&rule_); }

 private:
  std::variant<std::monostate, WrapFunction, CustomWrapFunction, ModuleNamePatterns> rule_;
};

// Wraps each module that is one of `Classes`, or derived from one.
template <typename... Classes>
WrapPolicy ModuleWrapPolicy() {
  return WrapPolicy([is_one = IsAnyOf<Classes...>()](Module& module) {
    return is_one(module) ? std::optional<UnitOverrides>(UnitOverrides()) : std::nullopt;
  });
}

// Wraps each module for which `decide` returns a value.
WrapPolicy CustomWrapPolicy(CustomWrapFunction decide);

// Wraps each module whose name matches one of `patterns`, such as "transformer.h.*" (nn/module_names.h).
WrapPolicy NameWrapPolicy(std::vector<std::string> patterns);

// Wraps each module for which `predicate` holds.
WrapFunction LambdaWrapPolicy(std::function<bool(Module& module)> predicate);

// Wraps each module that is one of `Classes`: for transformer blocks, as a function.
template <typename... Classes>
WrapFunction TransformerWrapPolicy() {
  return LambdaWrapPolicy(IsAnyOf<Classes...>());
}

// Wraps every module.
WrapFunction AlwaysWrapPolicy();

// Answers yes if any of `policies` does.
WrapFunction OrWrapPolicy(std::vector<WrapFunction> policies);

struct SizeBasedWrapOptions {
  // Modules that are left whole to the unit around them: neither they nor what is below them is wrapped.
  ModulePredicate force_leaf_modules = HasTypeName({"MultiheadAttention"});

  // Modules that are never wrapped themselves; what is below them may be.
  ModulePredicate exclude_wrap_modules = HasTypeName({"ModuleList", "ModuleDict"});
};

// Wraps, children first, each module whose parameters outside already wrapped children count at least `min_num_params`
// elements. Unlike PyTorch's, it never wraps a module that shares a parameter with one outside it, because a shared
// parameter must be inside one unit.
WrapFunction SizeBasedWrapPolicy(int64_t min_num_params = 100'000'000, SizeBasedWrapOptions options = {});

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_WRAP_POLICY_H_
