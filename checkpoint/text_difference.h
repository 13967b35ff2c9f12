// SPDX-License-Identifier: Apache-2.0
//
// CompareTexts: whether two texts of checkpoints have one value. Texts are JSON by convention, and each program spells
// JSON in its own way: with other blanks, another order of members, 1.0 for 1. So texts that are JSON on both sides are
// compared by value, and all others byte by byte.
//
// Equality is Python's, of what json.loads makes of the texts: objects are equal in any order of members, and numbers
// if they are the same number, exactly, however many digits they have (1 and 1.0 and 1e0; not 0.1 and 0.10000001).
// Python also takes true for 1, which is a difference here. A tagged dict or set (python_json.h) has no order either.
#ifndef FSDP_CHECKPOINT_TEXT_DIFFERENCE_H_
#define FSDP_CHECKPOINT_TEXT_DIFFERENCE_H_

#include <optional>
#include <string>

#include "fsdp/checkpoint/name_prefixes.h"

namespace fsdp {

// nullopt if the texts have one value; otherwise a phrase for a message, such as `differs at [0]["lr"]: 0.1 in A, 0.2
// in B` or `differs from byte 10 on: "17}" in A, "18}" in B`. Texts may be damaged or hostile. Names in
// lists called "params" and "param_names", as param_groups have them, are compared without `prefixes`. Pure.
std::optional<std::string> CompareTexts(const std::string& a, const std::string& b, const NamePrefixes& prefixes = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TEXT_DIFFERENCE_H_
