// SPDX-License-Identifier: Apache-2.0
//
// AutoWrap: applies a WrapPolicy to a root and says which modules become units, and with what of their own.
// PyTorch's _wrap_utils.py and the algorithm of wrap.py: post-order, so that a parent is decided knowing what its
// children took.
#ifndef FSDP_FSDP_WRAP_AUTO_WRAP_H_
#define FSDP_FSDP_WRAP_AUTO_WRAP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/wrap/ignored_states.h"
#include "fsdp/nn/module.h"

namespace fsdp {

struct WrappedModule {
  std::string name;  // its path below the root
  Module* module = nullptr;
  UnitOverrides overrides;
};

// The modules below `root` that options.auto_wrap_policy selects, parents first; none without a policy. With mixed
// precision, the modules that it ignores are among them, without mixed precision, whatever the policy says.
// kInvalidArgument names a module below `root` that has been sharded already.
absl::StatusOr<std::vector<WrappedModule>> AutoWrap(Module& root, const FsdpOptions& options,
                                                    const IgnoredStates& ignored);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_AUTO_WRAP_H_
