// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/quote.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

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

// The length of the non-ASCII UTF-8 character at the start of `text`; 0 if the bytes are not one, and for the control
// characters U+0080 to U+009F, which some terminals obey. Overlong forms and surrogates are refused as in RFC 3629.
size_t WideCharacterLength(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  uint32_t code = first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};
  const bool is_character = code >= kLeast[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return is_character ? length : 0;
}

// Escapes control characters, quotes, backslashes, and bytes that are not UTF-8: a terminal with another encoding may
// interpret such bytes as control characters.
std::string Escape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const bool is_wide = static_cast<unsigned char>(text[0]) >= 0x80;
    const size_t length = is_wide ? WideCharacterLength(text) : 0;
    if (length > 0) {
      escaped.append(text.substr(0, length));
    } else {
      escaped += absl::CEscape({text.data(), 1});
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return escaped;
}

}  // namespace

std::string Printable(std::string_view text) {
  if (text.size() <= kLongest) return Escape(text);
  const size_t head = CharacterStart(text, kKeptAtEachEnd);
  const size_t tail = CharacterStart(text, text.size() - kKeptAtEachEnd);
  return absl::StrCat(Escape(text.substr(0, head)), "...", Escape(text.substr(tail)));
}

std::string Quote(std::string_view name) { return absl::StrCat("\"", Printable(name), "\""); }

}  // namespace fsdp
