// SPDX-License-Identifier: Apache-2.0
//
// A signalfd instead of handlers: the launcher's poll loop reads signals like output of its ranks, so nothing runs in
// signal context and nothing is lost between a check and a sleep. The ranks get an empty signal mask again
// (child_process.cc).
#include "fsdp/collectives/job/forwarded_signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<ForwardedSignals>> ForwardedSignals::Block() {
  std::unique_ptr<ForwardedSignals> signals(new ForwardedSignals());
  sigset_t forwarded;
  sigemptyset(&forwarded);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    sigaddset(&forwarded, signal);
  }
  pthread_sigmask(SIG_BLOCK, &forwarded, &signals->mask_before_);
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &by_default, &signals->child_before_);
  signals->fd_ = FileDescriptor(signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals->fd_.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot receive signals: ", std::strerror(errno)));
  }
  return signals;
}

ForwardedSignals::~ForwardedSignals() {
  sigaction(SIGCHLD, &child_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

// The descriptor is non-blocking: read fails with EAGAIN once no signal is pending.
std::vector<int> ForwardedSignals::Take() {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

}  // namespace fsdp
