// SPDX-License-Identifier: Apache-2.0
//
// Print, PrintError: the way of programs to stdout and stderr. Files, directories, stores and configs are written by
// others, and their text is in most of what a program prints. Each place escapes the names that it knows (quote.h);
// here no other text reaches a terminal or a log as it is. tests/terminal_test.cc refuses other ways.
//
//   Print("%s: %d tensors\n", Printable(path), count);
#ifndef FSDP_BASE_TERMINAL_H_
#define FSDP_BASE_TERMINAL_H_

#include <cstdio>
#include <string_view>

#include "absl/strings/str_format.h"

namespace fsdp {

// Writes `text` to `stream`, with EscapeText (escape_text.h) but for newlines, tabs, quotes and backslashes. JSON stays
// JSON of the same value. Does not flush. Thread-safe: texts do not mix.
void WriteText(std::string_view text, std::FILE* stream);

// To stdout, in absl::StrFormat's format.
template <typename... Args>
void Print(const absl::FormatSpec<Args...>& format, const Args&... args) {
  WriteText(absl::StrFormat(format, args...), stdout);
}

// To stderr.
template <typename... Args>
void PrintError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  WriteText(absl::StrFormat(format, args...), stderr);
}

}  // namespace fsdp

#endif  // FSDP_BASE_TERMINAL_H_
