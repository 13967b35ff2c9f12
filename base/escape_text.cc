// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/escape_text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace fsdp {
namespace {

struct CodeRange {
  uint32_t first, last;
};

// The control characters from DEL on, and Unicode's Default_Ignorable_Code_Point (which has the marks of direction),
// U+2028, U+2029 and U+FFF9 to U+FFFB. Sorted, disjoint.
constexpr CodeRange kHidden[] = {
    {0x7F, 0x9F},     {0xAD, 0xAD},     {0x34F, 0x34F},   {0x61C, 0x61C},     {0x115F, 0x1160},   {0x17B4, 0x17B5},
    {0x180B, 0x180F}, {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},   {0x3164, 0x3164},   {0xFE00, 0xFE0F},
    {0xFEFF, 0xFEFF}, {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
};

bool IsHidden(uint32_t code) {
  const auto* range = std::lower_bound(std::begin(kHidden), std::end(kHidden), code,
                                       [](const CodeRange& r, uint32_t c) { return r.last < c; });
  return range != std::end(kHidden) && range->first <= code;
}

struct Character {
  size_t length;  // in bytes
  uint32_t code;
};

// The UTF-8 character at the start of `text`, which is not empty; nothing if the bytes are not one. Overlong forms and
// surrogates are refused as in RFC 3629.
std::optional<Character> FirstCharacter(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return Character{1, first};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return std::nullopt;
  uint32_t code = first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return std::nullopt;
    code = code << 6 | (next & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return std::nullopt;
  return Character{length, code};
}

// As JSON, which writes characters beyond U+FFFF as two surrogates.
std::string JsonEscape(uint32_t code) {
  const auto unit = [](uint32_t value) { return absl::StrCat("\\u", absl::Hex(value, absl::kZeroPad4)); };
  if (code < 0x10000) return unit(code);
  return absl::StrCat(unit(0xD800 + ((code - 0x10000) >> 10)), unit(0xDC00 + ((code - 0x10000) & 0x3FF)));
}

}  // namespace

std::string EscapeText(std::string_view text, std::string_view kept) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const std::optional<Character> character = FirstCharacter(text);
    const size_t length = character ? character->length : 1;
    const absl::string_view bytes(text.data(), length);
    if (character && IsHidden(character->code)) {
      escaped += JsonEscape(character->code);
    } else if (character && (length > 1 || kept.find(text[0]) != std::string_view::npos)) {
      escaped.append(bytes.data(), bytes.size());
    } else {
      escaped += absl::CEscape(bytes);
    }
    text.remove_prefix(length);
  }
  return escaped;
}

}  // namespace fsdp
