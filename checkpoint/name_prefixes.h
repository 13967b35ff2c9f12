// SPDX-License-Identifier: Apache-2.0
//
// FindPrefixes: whether the names of one model differ in two checkpoints only by a prefix, as a wrapper adds it
// ("module.", "_orig_mod.", "transformer.").
#ifndef FSDP_CHECKPOINT_NAME_PREFIXES_H_
#define FSDP_CHECKPOINT_NAME_PREFIXES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A name of A is a + rest, the same name in B is b + rest. Each is empty or ends with a dot.
struct NamePrefixes {
  std::string a;
  std::string b;
};

// The prefixes that make the most names of A names of B, if these are at least half of the names of the shorter list;
// else nullopt. `in_a` and `in_b` are FQNs without repetition, of which no name is in both. Prefixes of up to eight
// components are found. Pure.
std::optional<NamePrefixes> FindPrefixes(const std::vector<std::string_view>& in_a,
                                         const std::vector<std::string_view>& in_b);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NAME_PREFIXES_H_
