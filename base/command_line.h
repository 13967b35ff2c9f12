// SPDX-License-Identifier: Apache-2.0
//
// Command lines: Abseil's flags, parsed strictly. Abseil's own parser exits with 1 on a wrong flag, accepts every flag
// for every subcommand, and keeps only the last value of a repeated flag. Here an unknown, malformed, repeated or
// misplaced flag is an error with its reason, and the exit status is 2.
//
//   ABSL_FLAG(int, steps, 100, "steps to train");
//   int main(int argc, char** argv) {
//     std::vector<std::string> operands;
//     if (std::optional<int> status = fsdp::ParseFlags(argc, argv, "train_gpt [flags]", &operands)) return *status;
//
// Flags are --name=value, --name value, --bool, --nobool, before or after the operands; "--" ends them. In a name "-"
// is "_": --keep-last is --keep_last. Do not also link absl/flags:parse, which would parse the command line a second
// time.
#ifndef FSDP_BASE_COMMAND_LINE_H_
#define FSDP_BASE_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/base/exit_code.h"

namespace fsdp {

// The arguments, divided into operands and flags; no flag is set yet.
struct CommandLine {
  std::vector<std::string> operands;
  std::vector<std::pair<std::string, std::string>> flags;  // name and value, in order
  bool help = false;                                       // --help, -h
  bool helpfull = false;                                   // --helpfull
  bool version = false;                                    // --version, -V
};

// kInvalidArgument for a flag that no linked file defines, with the one of `suggested` that was probably meant (empty:
// of all flags), or one without its value.
absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv, absl::Span<const std::string> suggested = {});

// Whether the command line asks for JSON, although it may have an error: --json or --json=true, in any spelling of a
// switch, before "--".
bool WantsJson(int argc, char** argv);

// Sets the flags of `line`. kInvalidArgument for a flag that is not in `allowed` ("`where` has no flag --x"), one whose
// value does not parse ("--x=two, expected a whole number"), and one that is given twice, unless it is a RepeatedFlag.
absl::Status SetFlags(const CommandLine& line, std::string_view where, absl::Span<const std::string> allowed);

// A line for each of `names`, for WrapText: "  --name=VALUE: meaning; default: 7". Without "=VALUE" if the flag is a
// switch, without a default if it is empty or false.
std::string FlagHelp(absl::Span<const std::string> names);

// For a program with one set of flags, the ones that its files outside of Abseil define: parses and sets them, and
// enters the directory in which the command was typed (EnterCallersDirectory), so that relative paths are relative to
// it. Returns nullopt if the program should continue; else the exit status, after it printed help or the version (0) or
// an error (2), for a program with a flag --json also as an object. `usage` is the help from the name of the program
// on; the flags are listed before its line "examples:". `help` and `version` by themselves are --help and --version. If
// `operands` is null, every operand is an error.
std::optional<int> ParseFlags(int argc, char** argv, std::string_view usage,
                              std::vector<std::string>* operands = nullptr);

// Prints "PROGRAM 0.1.0"; returns kExitDone.
int PrintVersion(std::string_view program);

// The name of the program without its directory, for its messages: argv[0] is the path by which it was called.
std::string ProgramName(int argc, char** argv);

// Changes to the directory in which `bazel run` was typed ($BUILD_WORKING_DIRECTORY); does nothing if that variable is
// not set. A directory that cannot be entered is reported on stderr and otherwise ignored.
void EnterCallersDirectory();

// The type of a flag that may be given more than once. The values are in the order of the command line.
struct RepeatedFlag {
  std::vector<std::string> values;
};
bool AbslParseFlag(absl::string_view text, RepeatedFlag* flag, std::string* error);
std::string AbslUnparseFlag(const RepeatedFlag& flag);

// The type of a flag that is a number of bytes: 1048576, 512MiB, 1.5GiB, 5GB.
struct ByteSizeFlag {
  int64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteSizeFlag* flag, std::string* error);
std::string AbslUnparseFlag(const ByteSizeFlag& flag);

// The type of a switch that may have a text: --tensors, --notensors, --tensors=REGEX. A text that is the next argument
// is an operand.
struct SwitchOrTextFlag {
  bool is_on = false;
  std::string text;  // empty: a switch without a text
};
bool AbslParseFlag(absl::string_view text, SwitchOrTextFlag* flag, std::string* error);
std::string AbslUnparseFlag(const SwitchOrTextFlag& flag);

// Prints "PROGRAM: message" and how to get help to stderr; returns kExitUsage.
int ReportUsageError(std::string_view program, const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_BASE_COMMAND_LINE_H_
