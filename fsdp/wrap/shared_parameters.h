// SPDX-License-Identifier: Apache-2.0
//
// SharedAcrossUnits: the parameters that modules of several units have, such as a tied embedding that is wrapped
// separately from the head, and the innermost unit around all of those modules. That unit is unsharded whenever one of
// them computes, so the parameter can belong to it: it keeps one shard, one gradient and one optimizer state.
#ifndef FSDP_FSDP_WRAP_SHARED_PARAMETERS_H_
#define FSDP_FSDP_WRAP_SHARED_PARAMETERS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/wrap/ignored_states.h"
#include "fsdp/nn/module.h"

namespace fsdp {

struct UnitRequest;

// The index of the request whose unit has the parameter.
using MovedParameters = std::map<const Parameter*, size_t>;

struct SharedParameters {
  MovedParameters moved;
  std::map<const Parameter*, std::string> warnings;  // by parameter in `moved`

  // Drops the parameters that would go to request `index`.
  void LeaveOut(size_t index);

  // Adds a message for each parameter, in the order of their names.
  void Warn(std::vector<std::string>& messages) const;
};

// For a tree and requests as in Partition::Of; ignored parameters are left out. kInvalidArgument, naming parameter and
// module, if a unit that would give a parameter up has a precision of its own. Local.
absl::StatusOr<SharedParameters> SharedAcrossUnits(Module& root, const std::vector<UnitRequest>& requests,
                                                   const IgnoredStates& ignored);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_SHARED_PARAMETERS_H_
