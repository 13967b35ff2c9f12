// SPDX-License-Identifier: Apache-2.0
//
// ProblemJson: the object that a program prints for --json instead of its result, the same for all programs.
#ifndef FSDP_BASE_PROBLEM_JSON_H_
#define FSDP_BASE_PROBLEM_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// {"problem": message, "problems": [message], "code": "NOT_FOUND"}, indented, with a newline at its end; the code is
// the name of the status's. Messages contain names from damaged files: bytes that are not UTF-8 are replaced.
std::string ProblemJson(absl::StatusCode code, std::string_view message);

}  // namespace fsdp

#endif  // FSDP_BASE_PROBLEM_JSON_H_
