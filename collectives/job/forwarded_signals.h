// SPDX-License-Identifier: Apache-2.0
//
// ForwardedSignals: while it exists, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are blocked in the thread that created it and
// are read from a descriptor instead. For a launcher, which forwards them to its ranks. Other threads must block these
// signals too, or the kernel may deliver them there: create it before other threads.
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
  // Also sets SIGCHLD to its default, because a process that ignores it cannot wait for its children.
  // kResourceExhausted if there is no descriptor left.
  static absl::StatusOr<std::unique_ptr<ForwardedSignals>> Block();

  // Restores the signal mask and the disposition of SIGCHLD.
  ~ForwardedSignals();

  // Readable when a signal has arrived.
  int fd() const { return fd_.get(); }

  // The signals that arrived since the last call. Does not block. The kernel merges signals of the same number.
  std::vector<int> Take();

 private:
  ForwardedSignals() = default;

  FileDescriptor fd_;
  sigset_t mask_before_ = {};
  struct sigaction child_before_ = {};
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_FORWARDED_SIGNALS_H_
