// SPDX-License-Identifier: Apache-2.0
//
// AutoWrap: applies a WrapPolicy to a root. The result is the modules that become units, and the options in which they
// differ from the root's. PyTorch's _wrap_utils.py and the algorithm of wrap.py: post-order, so that a parent is
// decided after the elements that its children took are known.
#ifndef FSDP_FSDP_WRAP_AUTO_WRAP_H_
#define FSDP_FSDP_WRAP_AUTO_WRAP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/wrap/ignored_states.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// One module that becomes a unit.
struct WrappedModule {
  std::string name;  // its path below the root
  Module* module = nullptr;
  UnitOverrides overrides;
};

// The modules below `root` that options.auto_wrap_policy selects, parents first; without a policy, no modules. If mixed
// precision is on, module_classes_to_ignore are selected as well, under any policy, with overrides that turn it off for
// them. kInvalidArgument names a module below `root` that has been sharded already; kNotFound a pattern that no
// module's name matches. Local; changes nothing.
absl::StatusOr<std::vector<WrappedModule>> AutoWrap(Module& root, const FsdpOptions& options,
                                                    const IgnoredStates& ignored);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_AUTO_WRAP_H_
