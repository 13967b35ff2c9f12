// SPDX-License-Identifier: Apache-2.0
//
// Files of other programs do not say which of their values are a model and which an optimizer: a reader decides.
// SourceLayout is its decision, for people; TensorRole overrides it.
#ifndef FSDP_CHECKPOINT_SOURCE_SOURCE_LAYOUT_H_
#define FSDP_CHECKPOINT_SOURCE_SOURCE_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct SourceLayout {
  // One line: `model from "app.model", optimizer from "app.optim"`. Empty if the format itself says which is which.
  std::string text;

  // True for a plain state dict and for the usual names, at the top: nothing that a person has to check.
  bool is_usual = true;

  // A sentence for each kind of name that was changed, of value that was put elsewhere or left out, and of guess.
  std::vector<std::string> notes;
};

// What a branch of a saved dict is.
struct TensorRole {
  enum class Section : uint8_t { kModel, kOptim, kExtra };

  std::string branch;  // the keys on its path, joined by dots: "app.model"; "." is the whole dict
  Section section = Section::kModel;
  std::string prefix = {};  // put before the names of its parameters, with a dot: "generator."; empty for extra values
};

// Parses FROM=ROLE[.PREFIX], ROLE being model, optim or extra. kInvalidArgument quotes any other text.
absl::StatusOr<TensorRole> ParseTensorRole(const std::string& text);

// The same of each of `texts`, in order: the values of a program's --map, which the error names.
absl::StatusOr<std::vector<TensorRole>> RolesOfMapFlag(const std::vector<std::string>& texts);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SOURCE_LAYOUT_H_
