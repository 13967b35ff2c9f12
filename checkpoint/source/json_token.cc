// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/json_token.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"

namespace fsdp {
namespace {

constexpr size_t kUnitBytes = 6;  // of "\u20ac"

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsHighSurrogate(int unit) { return unit >= 0xD800 && unit <= 0xDBFF; }
bool IsLowSurrogate(int unit) { return unit >= 0xDC00 && unit <= 0xDFFF; }

// The value of a hexadecimal digit; -1 for any other character.
int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The UTF-16 unit that `text` begins with, as "\u20ac"; -1 if it does not.
int UnitOf(std::string_view text) {
  if (text.size() < kUnitBytes || text[0] != '\\' || text[1] != 'u') return -1;
  int unit = 0;
  for (size_t i = 2; i < kUnitBytes; ++i) {
    const int digit = HexValue(text[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

// The length of the escape that `text` begins with; 0 if JSON does not define it.
size_t EscapeLength(std::string_view text) {
  constexpr std::string_view kSimple = "\"\\/bfnrt";
  if (text.size() >= 2 && kSimple.find(text[1]) != kSimple.npos) return 2;
  const int unit = UnitOf(text);
  if (unit < 0 || IsLowSurrogate(unit)) return 0;
  if (!IsHighSurrogate(unit)) return kUnitBytes;
  return IsLowSurrogate(UnitOf(text.substr(kUnitBytes))) ? 2 * kUnitBytes : 0;
}

// Why a string that contains `rest` is invalid at its first byte.
std::string_view WhyInvalid(std::string_view rest) {
  if (rest[0] != '\\') return "invalid string: it is not UTF-8";
  return UnitOf(rest) < 0 ? "invalid string: JSON has no such escape" : "invalid string: a surrogate without its pair";
}

// Appends the character of a valid `escape`.
void AppendEscape(std::string_view escape, std::string& out) {
  switch (escape[1]) {
    case 'b':
      return out.push_back('\b');
    case 'f':
      return out.push_back('\f');
    case 'n':
      return out.push_back('\n');
    case 'r':
      return out.push_back('\r');
    case 't':
      return out.push_back('\t');
    case 'u':
      break;
    default:
      return out.push_back(escape[1]);
  }
  const int unit = UnitOf(escape);
  if (!IsHighSurrogate(unit)) return AppendUtf8(unit, out);
  AppendUtf8(0x10000 + ((unit - 0xD800) << 10) + (UnitOf(escape.substr(kUnitBytes)) - 0xDC00), out);
}

}  // namespace

absl::Status NotJson(size_t at, std::string_view why) {
  return absl::DataLossError(absl::StrCat("not JSON at byte ", at + 1, ": ", std::string(why)));
}

absl::StatusOr<std::string_view> ScanJsonString(std::string_view text, size_t at) {
  const size_t begin = at++;
  while (at < text.size() && text[at] != '"') {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x20) return NotJson(at, "invalid string: it holds a control character");
    // ASCII first: almost every character is.
    const size_t length = c == '\\' ? EscapeLength(text.substr(at)) : c < 0x80 ? 1 : Utf8Length(text.substr(at));
    if (length == 0) return NotJson(at, WhyInvalid(text.substr(at)));
    at += length;
  }
  if (at >= text.size()) return NotJson(text.size(), "invalid string: the text ends in it");
  return text.substr(begin, at + 1 - begin);
}

std::string UnescapeJsonString(std::string_view token) {
  std::string_view rest = token.substr(1, token.size() - 2);
  std::string out;
  out.reserve(rest.size());
  for (size_t escape = rest.find('\\'); escape != rest.npos; escape = rest.find('\\')) {
    out.append(rest.substr(0, escape));
    rest.remove_prefix(escape);
    const size_t length = EscapeLength(rest);
    AppendEscape(rest.substr(0, length), out);
    rest.remove_prefix(length);
  }
  return out.append(rest);
}

bool IsPlainJson(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

absl::StatusOr<std::string_view> ScanJsonNumber(std::string_view text, size_t at) {
  const size_t begin = at;
  const auto is_at = [&](std::string_view any) { return at < text.size() && any.find(text[at]) != any.npos; };
  const auto skip_digits = [&]() -> absl::Status {
    if (at >= text.size() || !IsDigit(text[at])) return NotJson(at, "expected a digit of a number");
    while (at < text.size() && IsDigit(text[at])) ++at;
    return absl::OkStatus();
  };
  if (is_at("-")) ++at;
  // No digit may follow a leading zero.
  if (is_at("0")) {
    ++at;
  } else {
    FSDP_RETURN_IF_ERROR(skip_digits());
  }
  if (is_at(".")) {
    ++at;
    FSDP_RETURN_IF_ERROR(skip_digits());
  }
  if (is_at("eE")) {
    ++at;
    if (is_at("+-")) ++at;
    FSDP_RETURN_IF_ERROR(skip_digits());
  }
  return text.substr(begin, at - begin);
}

}  // namespace fsdp
