// SPDX-License-Identifier: Apache-2.0
//
// CountedNote: things of one kind that become one note, with the name of the first.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_COUNTED_NOTE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_COUNTED_NOTE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {

class CountedNote {
 public:
  void Add(const std::string& name) {
    if (count_++ == 0) first_ = name;
  }

  // Adds `2 values None left out, such as "a"`, if there is any: `one` or `several` follows the number, then `rest`.
  void AddNote(const char* one, const char* several, const char* rest, std::vector<std::string>& notes) const {
    if (count_ > 0) notes.push_back(absl::StrCat(count_, count_ == 1 ? one : several, rest, Quote(first_)));
  }

 private:
  int64_t count_ = 0;
  std::string first_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_COUNTED_NOTE_H_
