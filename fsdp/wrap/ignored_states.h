// SPDX-License-Identifier: Apache-2.0
//
// IgnoredStates: the modules and parameters that FSDP does not manage. Ignored parameters are not flattened, sharded,
// gathered or reduced; they keep the memory that they have, and state dicts hold them whole.
#ifndef FSDP_FSDP_WRAP_IGNORED_STATES_H_
#define FSDP_FSDP_WRAP_IGNORED_STATES_H_

#include <set>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/nn/module.h"

namespace fsdp {

struct IgnoredStates {
  std::set<const Module*> modules;  // ignored modules with all modules below them
  std::set<const Parameter*> parameters;

  bool contains(const Module& module) const { return modules.count(&module) != 0; }
  bool contains(const Parameter& parameter) const { return parameters.count(&parameter) != 0; }
};

// Ignores `module` and all modules below it, except modules that WrapModule marked and everything below these: they
// stay managed, as FSDP instances below an ignored module do in PyTorch.
void IgnoreSubtree(const Module& module, IgnoredStates& states);

// The states below `root` that `options.ignored_modules` or `options.ignored_states` exclude. kInvalidArgument if both
// are set, and for an entry that is null, not below `root`, or a module that has been sharded separately.
absl::StatusOr<IgnoredStates> ResolveIgnoredStates(Module& root, const FsdpOptions& options);

// The number of elements of the parameters of `module` and below. Shared parameters count once, ignored ones do not
// count.
int64_t ManagedNumel(Module& module, const IgnoredStates& ignored);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_IGNORED_STATES_H_
