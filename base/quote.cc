// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/quote.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/url_password.h"

namespace fsdp {
namespace {

constexpr size_t kLongest = 256;
constexpr size_t kKeptAtEachEnd = 96;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The start of the UTF-8 character that holds byte `at`, so that a cut leaves whole characters.
size_t CharacterStart(std::string_view text, size_t at) {
  while (at > 0 && IsContinuation(text[at])) --at;
  return at;
}

}  // namespace

std::string Printable(std::string_view text) {
  if (text.size() <= kLongest) return EscapeText(text);
  // Before the cut: the end of a secret does not show that it is one.
  const std::optional<std::string> hidden = FindAndHidePasswords(text);
  if (hidden) text = *hidden;
  if (text.size() <= kLongest) return EscapeText(text);
  const size_t head = CharacterStart(text, kKeptAtEachEnd);
  const size_t tail = CharacterStart(text, text.size() - kKeptAtEachEnd);
  return absl::StrCat(EscapeText(text.substr(0, head)), "...", EscapeText(text.substr(tail)));
}

std::string Quote(std::string_view name) { return absl::StrCat("\"", Printable(name), "\""); }

}  // namespace fsdp
