// SPDX-License-Identifier: Apache-2.0
//
// Names of nested optimizer state. An optimizer may keep dicts and lists in the state of a parameter: 8-bit optimizers
// a dict, Shampoo a list of matrices. Our state dicts have one name for each tensor, so the keys are joined by dots:
//
//   {"quant": {"absmax": t}}    "quant.absmax"
//   {"GG": [t, u]}              "GG.[0]", "GG.[1]"
//   {"a.b": t}                  "a%2Eb": a key that could be read as another is escaped
//
// A value that is no tensor is an extra value of that name (optimizer_value.h). Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_STATE_PATH_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_STATE_PATH_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct StatePathElement {
  std::string key;        // of a dict; in decimal, of a list
  bool is_index = false;  // into a list

  bool operator==(const StatePathElement& other) const { return key == other.key && is_index == other.is_index; }
};

// The name of the member `element` of the value named `path`; "" is the state of the parameter itself.
std::string JoinStatePath(const std::string& path, const StatePathElement& element);

// The inverse: the elements of a name. Any text has some; one with more than kMaxStatePath has one, the text.
inline constexpr size_t kMaxStatePath = 40;
std::vector<StatePathElement> SplitStatePath(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_STATE_PATH_H_
