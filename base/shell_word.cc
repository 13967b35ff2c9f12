// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/shell_word.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "fsdp/base/escape_text.h"

namespace fsdp {
namespace {

// Characters outside of ASCII mean nothing to a shell.
bool IsPlain(char c) {
  constexpr std::string_view kMarks = "_-./+,:@%=";
  return absl::ascii_isalnum(c) || !absl::ascii_isascii(c) || kMarks.find(c) != kMarks.npos;
}

}  // namespace

std::string ShellWord(std::string_view path) {
  const std::string word =
      absl::StrCat(path.substr(0, 1) == "-" ? "./" : "", absl::string_view(path.data(), path.size()));
  // EscapeText writes the escapes that $'...' reads.
  if (EscapeText(word, "\"'\\") != word) return absl::StrCat("$'", EscapeText(word), "'");
  if (!word.empty() && std::all_of(word.begin(), word.end(), IsPlain)) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace fsdp
