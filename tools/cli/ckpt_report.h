// SPDX-License-Identifier: Apache-2.0
//
// How ckpt's subcommands end.
#ifndef FSDP_TOOLS_CLI_CKPT_REPORT_H_
#define FSDP_TOOLS_CLI_CKPT_REPORT_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// Prints "PROGRAM: message" to stderr. Returns kExitFailed.
int ReportFailure(const std::string& program, const absl::Status& status);

// The JSON that --json prints on stdout, in addition to that line, when there is no result: {"problem": message}.
std::string ProblemJson(const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_REPORT_H_
