// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/source_notes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fsdp {

std::vector<std::string> SourceNotes(const TensorSource& source, std::string_view options) {
  std::vector<std::string> notes;
  const SourceLayout& layout = source.layout();
  if (!layout.text.empty() && !layout.is_usual) notes.push_back(layout.text);
  const std::string named = absl::StrCat(std::string(options), "::");
  for (const std::string& note : layout.notes) {
    notes.push_back(absl::StrReplaceAll(note, {{"TensorSourceOptions::", named}}));
  }
  for (const std::string& left_out : source.left_out()) notes.push_back(absl::StrCat("left out: ", left_out));
  return notes;
}

}  // namespace fsdp
