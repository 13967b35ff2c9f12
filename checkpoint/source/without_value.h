// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_
#define FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_

#include <string>
#include <vector>

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// `state` without its entry `key`, since a StateDict only grows.
StateDict WithoutValue(const StateKey& key, const StateDict& state);

// Takes the extra values out of `state` whose names are empty or have NUL, as keys of a program's dict may be, for a
// format that cannot hold such names. Returns a note about each. Parts of extra values have other names.
std::vector<std::string> LeaveOutUnstorableNames(StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_
