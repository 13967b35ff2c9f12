// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/stacked_name.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// The words before the number of a layer and of an expert, in this order.
constexpr std::array<std::string_view, 2> kStacks = {"layers.", "experts.experts."};

// The place after the first `stack` in `key`, from `from` on, that begins a word and has something behind it; npos if
// there is none.
size_t EndOfStack(std::string_view key, std::string_view stack, size_t from) {
  for (size_t at = key.find(stack, from); at != key.npos; at = key.find(stack, at + 1)) {
    const bool begins_word = at == 0 || key[at - 1] == '.';
    if (begins_word && at + stack.size() < key.size()) return at + stack.size();
  }
  return key.npos;
}

// The digits at `from` that are a whole word; empty if it is no number.
std::string_view NumberAt(std::string_view key, size_t from) {
  constexpr size_t kMaxDigits = 9;
  const size_t end = std::min(key.find('.', from), key.size());
  const std::string_view word = key.substr(from, end - from);
  const bool is_number = !word.empty() && word.size() <= kMaxDigits && end < key.size() &&
                         std::all_of(word.begin(), word.end(), absl::ascii_isdigit);
  return is_number ? word : std::string_view();
}

}  // namespace

// "decoder.layers.mlp.linear_fc1.weight" stands for "decoder.layers.0.mlp...": the number is missing after a known
// word. A key that has the number is of one layer.
StackedName StackedName::Of(std::string_view key) {
  StackedName name;
  size_t begin = 0;
  size_t from = 0;
  for (const std::string_view stack : kStacks) {
    const size_t end = EndOfStack(key, stack, from);
    if (end == key.npos) continue;
    from = end;
    if (!NumberAt(key, end).empty()) continue;
    name.parts_.emplace_back(key.substr(begin, end - begin));
    begin = end;
  }
  name.parts_.emplace_back(key.substr(begin));
  return name;
}

std::string StackedName::At(absl::Span<const int64_t> at) const {
  std::string name = parts_[0];
  for (size_t i = 1; i < parts_.size(); ++i) absl::StrAppend(&name, at[i - 1], ".", parts_[i]);
  return name;
}

std::string StackedName::Stack(int axis) const {
  std::string stack;
  for (int i = 0; i <= axis; ++i) stack += parts_[i];
  return stack.substr(0, stack.size() - 1);
}

// The reverse: takes the numbers out of a name.
std::string StackedKey(std::string_view name, bool layers, std::vector<int64_t>& at) {
  std::string key;
  size_t begin = 0;
  size_t from = 0;
  for (const std::string_view stack : kStacks) {
    const size_t end = EndOfStack(name, stack, from);
    if (end == name.npos) continue;
    from = end;
    const std::string_view number = NumberAt(name, end);
    int64_t index = 0;
    // "01" would come back as "1".
    const bool is_plain = number.size() == 1 || !absl::StartsWith(absl::string_view(number.data(), number.size()), "0");
    const bool is_wanted = layers || stack != kStacks[0];
    if (!is_wanted || number.empty() || !is_plain ||
        !absl::SimpleAtoi(absl::string_view(number.data(), number.size()), &index)) {
      continue;
    }
    at.push_back(index);
    absl::StrAppend(&key, std::string(name.substr(begin, end - begin)));
    begin = from = end + number.size() + 1;
  }
  return absl::StrCat(key, std::string(name.substr(begin)));
}

}  // namespace fsdp
