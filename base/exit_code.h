// SPDX-License-Identifier: Apache-2.0
//
// The exit statuses of this repository's programs. A program that a signal ends has 128 + the signal's number, as a
// shell reports it.
#ifndef FSDP_BASE_EXIT_CODE_H_
#define FSDP_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace fsdp {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;    // a problem was found, an input is unreadable, or the work failed
inline constexpr int kExitUsage = 2;     // the command line is wrong
inline constexpr int kExitRestart = 75;  // the same command, started again, may succeed: EX_TEMPFAIL of sysexits.h

// The exit status of a rank whose run ended with `status`. kUnavailable and kDeadlineExceeded are not this rank's
// fault: a peer died or did not arrive, or another process holds a port or a directory.
inline int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kExitRestart : kExitFailed;
}

}  // namespace fsdp

#endif  // FSDP_BASE_EXIT_CODE_H_
