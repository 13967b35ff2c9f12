// SPDX-License-Identifier: Apache-2.0
//
// NamePattern: a regular expression of an adapter's config, matched as PEFT matches it: with the whole name of a
// module, or with the part after one of its dots. The pattern may come from a hostile file, so it is run as a set of
// states, whose time is bounded by pattern times name, and never by backtracking. Known are literals, ".", classes,
// groups,
// "|", "*", "+", "?", "^", "$" and the escapes of Python's re for characters and classes; a pattern with anything else
// is refused. Immutable, thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_NAME_PATTERN_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_NAME_PATTERN_H_

#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

class NamePattern {
 public:
  // kInvalidArgument quotes the pattern and names what is not supported in it.
  static absl::StatusOr<NamePattern> Create(const std::string& pattern);

  // re.match(r"(.*\.)?(PATTERN)$", name) of Python.
  bool MatchesEndOf(std::string_view name) const;

  // A match takes at most as many steps as these times the bytes of the name; 0: as a comparison of texts.
  size_t states() const { return states_.size(); }

 private:
  friend class NamePatternParser;

  enum class Kind : unsigned char { kBytes, kSplit, kBegin, kEnd, kAccept };

  // kBytes reads a byte of `bytes` and goes to `next`; kSplit goes to `next` and `other`; kBegin and kEnd go to `next`
  // at the ends of the name.
  struct State {
    Kind kind = Kind::kAccept;
    size_t next = 0;
    size_t other = 0;
    std::bitset<256> bytes = {};
  };

  // Adds `state` and all that it leads to without reading a byte.
  void Enter(size_t state, size_t at, std::string_view name, std::vector<bool>& active) const;

  // A pattern of letters, digits, "_", "-" and ".", which is most of them, needs no states: it is compared.
  std::string plain_;
  std::vector<State> states_;
  size_t start_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_NAME_PATTERN_H_
