// SPDX-License-Identifier: Apache-2.0
//
// ProblemJson: the object that a program prints for --json instead of its result, the same for all programs.
#ifndef FSDP_BASE_PROBLEM_JSON_H_
#define FSDP_BASE_PROBLEM_JSON_H_

#include <string>
#include <string_view>

namespace fsdp {

// {"problem": message, "problems": [message]}, indented, with a newline at its end. Messages contain names from damaged
// files: bytes that are not UTF-8 are replaced.
std::string ProblemJson(std::string_view message);

}  // namespace fsdp

#endif  // FSDP_BASE_PROBLEM_JSON_H_
