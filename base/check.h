// SPDX-License-Identifier: Apache-2.0
//
// Check: for invariants that only a bug in this repository can break. An error that a caller, a file or a peer can
// cause is an absl::Status instead. A function and not a macro: file and line come from the default arguments.
#ifndef FSDP_BASE_CHECK_H_
#define FSDP_BASE_CHECK_H_

#include <string_view>

namespace fsdp {

// Writes "file:line: check failed: what" to stderr and aborts.
[[noreturn]] void CheckFailed(std::string_view what, const char* file, int line);

// Calls CheckFailed if `condition` is false. `what` names the property that should hold; it is always evaluated, so use
// a literal. Every build has the check, optimised builds too.
inline void Check(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) [[unlikely]] {
    CheckFailed(what, file, line);
  }
}

}  // namespace fsdp

#endif  // FSDP_BASE_CHECK_H_
