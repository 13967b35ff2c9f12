// SPDX-License-Identifier: Apache-2.0
//
// How ckpt's subcommands end after an error: a line for people on stderr, and one exit status for all errors, so that
// scripts need not parse messages.
#ifndef FSDP_TOOLS_CLI_CKPT_REPORT_H_
#define FSDP_TOOLS_CLI_CKPT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fsdp {

// A library calls an option by its C++ name, "ConvertOptions::max_memory". Returns `message` with the names of ckpt's
// flags: "--max_memory".
std::string WithFlagNames(absl::string_view message);

// `status`, or, if it is that the output `path` exists, with "; --force replaces it" at the end.
absl::Status SuggestForce(const absl::Status& status, const std::string& path);

// kInvalidArgument, which says what to type, if one of `operands` is in an object store. For the subcommands that read
// and write files; they would look for a directory "s3:".
absl::Status CheckAreFiles(const std::vector<std::string>& operands);

// kInvalidArgument, which says what to do, if one of `operands` is empty, or a URL of anything but an object store,
// such as "hf://gpt2", and not a file.
absl::Status CheckAreNoOtherUrls(const std::vector<std::string>& operands);

// Prints "PROGRAM: message", with the names of flags, to stderr. Returns kExitFailed.
int ReportFailure(const std::string& program, const absl::Status& status);

// An error of the command line that only the subcommand finds: the same line, with a way to its help, and with --json
// also ProblemJson on stdout. Returns kExitUsage.
int ReportUsage(const std::string& program, const absl::Status& status);

// The JSON that --json prints on stdout, in addition to that line, when there is no result (base/problem_json.h).
std::string ProblemJson(const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_REPORT_H_
