// SPDX-License-Identifier: Apache-2.0
//
// Say: prints a line for people to stdout. Only rank 0 calls it, since ranks share the terminal.
#ifndef FSDP_TRAIN_SAY_H_
#define FSDP_TRAIN_SAY_H_

#include <cstdio>

#include "absl/strings/str_format.h"
#include "fsdp/base/terminal.h"

namespace fsdp {

// Prints a line and flushes it, so that a log file has the line even if the run is killed next.
template <typename... Args>
void Say(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Print("%s\n", absl::StrFormat(format, args...));
  std::fflush(stdout);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_SAY_H_
