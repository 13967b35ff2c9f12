// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fsdp {
namespace {

std::string Unescaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"%25", "%"}, {"%2E", "."}, {"%5B", "["}});
}

// Most keys are as they are, also in a state dict that no reader of torch's files made.
std::string Escaped(const std::string& key) {
  const bool is_plain = !absl::StrContains(key, '.') && !absl::StartsWith(key, "[") && Unescaped(key) == key;
  if (is_plain) return key;
  std::string text = absl::StrReplaceAll(key, {{"%", "%25"}, {".", "%2E"}});
  return absl::StartsWith(text, "[") ? absl::StrCat("%5B", text.substr(1)) : text;
}

StatePathElement ElementOf(const std::string& text) {
  const bool is_index = text.size() > 2 && text.front() == '[' && text.back() == ']' &&
                        std::all_of(text.begin() + 1, text.end() - 1, [](char c) { return absl::ascii_isdigit(c); });
  return is_index ? StatePathElement{text.substr(1, text.size() - 2), true} : StatePathElement{Unescaped(text), false};
}

}  // namespace

std::string JoinStatePath(const std::string& path, const StatePathElement& element) {
  const std::string text = element.is_index ? absl::StrCat("[", element.key, "]") : Escaped(element.key);
  return path.empty() ? text : absl::StrCat(path, ".", text);
}

std::vector<StatePathElement> SplitStatePath(std::string_view name) {
  std::vector<StatePathElement> elements;
  if (static_cast<size_t>(std::count(name.begin(), name.end(), '.')) >= kMaxStatePath) {
    return {{std::string(name), false}};
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    elements.push_back(ElementOf(std::string(name.substr(begin, end - begin))));
    begin = end + 1;
  }
  return elements;
}

}  // namespace fsdp
