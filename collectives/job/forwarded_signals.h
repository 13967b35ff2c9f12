// SPDX-License-Identifier: Apache-2.0
//
// ForwardedSignals: while it exists, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 do not act on the calling thread but wait to
// be taken. For a launcher, which passes them on to its ranks.
#ifndef FSDP_COLLECTIVES_JOB_FORWARDED_SIGNALS_H_
#define FSDP_COLLECTIVES_JOB_FORWARDED_SIGNALS_H_

#include <csignal>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class ForwardedSignals {
 public:
  // Also makes sure that children can be waited for, should SIGCHLD be ignored.
  static absl::StatusOr<std::unique_ptr<ForwardedSignals>> Block();

  // Everything as it was before.
  ~ForwardedSignals();

  // Readable when there is something to take.
  int fd() const { return fd_.get(); }

  // The signals that came since the last call.
  std::vector<int> Take();

 private:
  ForwardedSignals() = default;

  FileDescriptor fd_;
  sigset_t mask_before_ = {};
  struct sigaction child_before_ = {};
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_FORWARDED_SIGNALS_H_
