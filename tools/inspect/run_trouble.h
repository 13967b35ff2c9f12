// SPDX-License-Identifier: Apache-2.0
//
// FindTrouble: the places of a run at which a person would look first. Pure.
#ifndef FSDP_TOOLS_INSPECT_RUN_TROUBLE_H_
#define FSDP_TOOLS_INSPECT_RUN_TROUBLE_H_

#include <string>
#include <vector>

#include "fsdp/tools/inspect/run_history.h"

namespace fsdp {

// A change is a jump if it is this many times the median of the layer's changes before, which must be kMinChangesBefore
// or more: the first steps of a training change everything.
inline constexpr double kJump = 10;
inline constexpr size_t kMinChangesBefore = 3;

// Sentences, of each kind one at most: steps that could not be read; the first values that are not finite; the first
// jump, and the largest; layers that never changed while others did. Names of layers and files are printable.
std::vector<std::string> FindTrouble(const RunHistory& history);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_RUN_TROUBLE_H_
