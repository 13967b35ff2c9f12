// SPDX-License-Identifier: Apache-2.0
//
// With an ignored module everything below it is ignored, and its parameters are ignored under every name that they
// have, so a parameter shared with a module that is not ignored is ignored there too. All paths are resolved here,
// once; later code looks up two sets of addresses.
#include "fsdp/fsdp/wrap/ignored_states.h"

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/wrap/manual_wrap.h"

namespace fsdp {
namespace {

// `argument` is the field of FsdpOptions, for messages.
absl::Status IgnoreModules(Module& root, const std::vector<Module*>& ignored, std::string_view argument,
                           IgnoredStates& states) {
  std::map<const Module*, std::string> paths;
  for (const auto& [name, module] : root.NamedModules()) paths.emplace(module, name);
  for (size_t i = 0; i < ignored.size(); ++i) {
    const auto known = paths.find(ignored[i]);
    if (known == paths.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(argument), "[", i, "] is ", ignored[i] == nullptr ? "null" : "no module",
                       ": expected modules below the ", std::string(root.type_name()), " that is wrapped"));
    }
    // A unit of another model, whose executor owns its parameters.
    if (ignored[i]->hooks() != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(argument), "[", i, "], module \"", known->second,
                                                     "\", is sharded on its own: expected modules that FSDP was not "
                                                     "applied to"));
    }
    IgnoreSubtree(*ignored[i], states);
  }
  return absl::OkStatus();
}

absl::Status IgnoreParameters(Module& root, const std::vector<std::shared_ptr<Parameter>>& ignored,
                              IgnoredStates& states) {
  std::set<const Parameter*> known;
  for (const auto& [name, parameter] : root.NamedParameters()) known.insert(parameter.get());
  for (size_t i = 0; i < ignored.size(); ++i) {
    if (known.count(ignored[i].get()) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ignored_states[", i, "] is ", ignored[i] == nullptr ? "null" : absl::StrCat("\"", ignored[i]->fqn, "\""),
          ": expected parameters of the ", std::string(root.type_name()), " that is wrapped"));
    }
    states.parameters.insert(ignored[i].get());
  }
  return absl::OkStatus();
}

}  // namespace

void IgnoreSubtree(const Module& module, IgnoredStates& states) {
  states.modules.insert(&module);
  for (const auto& [name, parameter] : module.own_parameters()) states.parameters.insert(parameter.get());
  for (const auto& [name, child] : module.children()) {
    // As FSDP instances below an ignored module in PyTorch: they stay managed.
    if (ManualWrap::Of(*child) == nullptr) IgnoreSubtree(*child, states);
  }
}

absl::StatusOr<IgnoredStates> ResolveIgnoredStates(Module& root, const FsdpOptions& options) {
  const auto* modules = std::get_if<std::vector<Module*>>(&options.ignored_states);
  const auto* parameters = std::get_if<std::vector<std::shared_ptr<Parameter>>>(&options.ignored_states);
  const bool states_given = modules != nullptr || parameters != nullptr;
  if (!options.ignored_modules.empty() && states_given) {
    return absl::InvalidArgumentError("ignored_modules and ignored_states are both given: expected one of them");
  }
  IgnoredStates states;
  FSDP_RETURN_IF_ERROR(IgnoreModules(root, options.ignored_modules, "ignored_modules", states));
  if (modules != nullptr) FSDP_RETURN_IF_ERROR(IgnoreModules(root, *modules, "ignored_states", states));
  if (parameters != nullptr) FSDP_RETURN_IF_ERROR(IgnoreParameters(root, *parameters, states));
  return states;
}

int64_t ManagedNumel(Module& module, const IgnoredStates& ignored) {
  std::set<const Parameter*> counted;
  int64_t numel = 0;
  for (const auto& [name, parameter] : module.NamedParameters()) {
    if (!ignored.contains(*parameter) && counted.insert(parameter.get()).second) numel += parameter->shape.numel();
  }
  return numel;
}

}  // namespace fsdp
