// SPDX-License-Identifier: Apache-2.0
//
// Policies are plain functions of a WrapCandidate. SizeBasedWrapPolicy answers the two questions about a module
// differently: "look below?" by the module's whole size, since a child can only be large enough if the module is, and
// "wrap it?" by the elements that its children left, because elements of inner units are not the module's any more.
#include "fsdp/fsdp/options/wrap_policy.h"

#include <algorithm>

namespace fsdp {

WrapPolicy CustomWrapPolicy(CustomWrapFunction decide) { return WrapPolicy(std::move(decide)); }

WrapPolicy NameWrapPolicy(std::vector<std::string> patterns) {
  return WrapPolicy(ModuleNamePatterns{std::move(patterns)});
}

WrapFunction LambdaWrapPolicy(std::function<bool(Module& module)> predicate) {
  return [predicate = std::move(predicate)](const WrapCandidate& question) {
    return question.recurse || predicate(question.module);
  };
}

WrapFunction AlwaysWrapPolicy() {
  return [](const WrapCandidate&) { return true; };
}

WrapFunction OrWrapPolicy(std::vector<WrapFunction> policies) {
  return [policies = std::move(policies)](const WrapCandidate& question) {
    return std::any_of(policies.begin(), policies.end(), [&](const WrapFunction& ask) { return ask(question); });
  };
}

WrapFunction SizeBasedWrapPolicy(int64_t min_num_params, SizeBasedWrapOptions options) {
  return [min_num_params, options = std::move(options)](const WrapCandidate& question) {
    if (question.nonwrapped_numel < min_num_params) return false;
    if (question.recurse) return !options.force_leaf_modules(question.module);
    return !options.exclude_wrap_modules(question.module) && !question.shares_parameters;
  };
}

}  // namespace fsdp
