// SPDX-License-Identifier: Apache-2.0
//
// Check: for invariants that only a bug of ours can break. Whatever a caller, a file or a peer can cause is an
// absl::Status instead. A function and not a macro: the place comes from the default arguments.
#ifndef FSDP_BASE_CHECK_H_
#define FSDP_BASE_CHECK_H_

#include <string_view>

namespace fsdp {

// Writes "file:line: check failed: what" to stderr and aborts.
[[noreturn]] void CheckFailed(std::string_view what, const char* file, int line);

// Aborts by CheckFailed when `condition` is false. `what` is evaluated either way, so keep it a literal.
inline void Check(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) [[unlikely]] {
    CheckFailed(what, file, line);
  }
}

}  // namespace fsdp

#endif  // FSDP_BASE_CHECK_H_
