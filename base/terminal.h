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

// Writes `text` to `stream`, without passwords (url_password.h), and with EscapeText (escape_text.h) but for newlines,
// tabs, quotes and backslashes. JSON stays JSON of the same value. Does not flush. Thread-safe: texts do not mix.
void WriteText(std::string_view text, std::FILE* stream);

// To stdout, in absl::StrFormat's format.
template <typename... Args>
void Print(const absl::FormatSpec<Args...>& format, const Args&... args) {
  WriteText(absl::StrFormat(format, args...), stdout);
}

// Like Print, but in red if stdout is a terminal, unless $NO_COLOR is set (no-color.org) or $TERM is "dumb": for what a
// person must not miss.
void WriteAlarm(std::string_view text);
template <typename... Args>
void PrintAlarm(const absl::FormatSpec<Args...>& format, const Args&... args) {
  WriteAlarm(absl::StrFormat(format, args...));
}

// To stderr.
template <typename... Args>
void PrintError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  WriteText(absl::StrFormat(format, args...), stderr);
}

// The first call of a main function, or in ParseFlags: a program that was started without stdin, stdout or stderr
// (`>&-`, some daemons) would give the number of the missing stream to the next file that it opens, and then print into
// that file. Puts something in each such place that can be read from but not written to.
void KeepStandardStreams();

// Whether `descriptor` is a terminal that obeys the commands which colour and redraw: $TERM is set, and not "dumb".
bool ObeysCommands(int descriptor);

// The last call of a main function, with its exit status: writes what stdout still holds. If any write to stdout has
// failed, such as on a full disk, prints "PROGRAM: stdout: REASON" to stderr and returns kExitFailed instead of
// kExitDone, since a script would take a part of the output for all of it.
int FinishOutput(std::string_view program, int exit_status);

}  // namespace fsdp

#endif  // FSDP_BASE_TERMINAL_H_
