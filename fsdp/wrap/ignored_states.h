// SPDX-License-Identifier: Apache-2.0
//
// IgnoredStates: what of a module FSDP leaves alone. Ignored parameters are not flattened, sharded, gathered or
// reduced; they keep whatever memory they have, and state dicts hold them as they are.
#ifndef FSDP_FSDP_WRAP_IGNORED_STATES_H_
#define FSDP_FSDP_WRAP_IGNORED_STATES_H_

#include <set>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/nn/module.h"

namespace fsdp {

struct IgnoredStates {
  std::set<const Module*> modules;  // the subtrees of the ignored ones, whole
  std::set<const Parameter*> parameters;

  bool contains(const Module& module) const { return modules.count(&module) != 0; }
  bool contains(const Parameter& parameter) const { return parameters.count(&parameter) != 0; }
};

// What `options.ignored_modules` or `options.ignored_states` leave out of `root`. kInvalidArgument when both are given,
// for a null or for one that is not below `root`, and for a module that has been sharded on its own.
absl::StatusOr<IgnoredStates> ResolveIgnoredStates(Module& root, const FsdpOptions& options);

// Elements of the parameters below `module`, shared ones once, ignored ones not.
int64_t ManagedNumel(Module& module, const IgnoredStates& ignored);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_IGNORED_STATES_H_
