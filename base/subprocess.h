// SPDX-License-Identifier: Apache-2.0
//
// Subprocess: a program started by this one, in a process group of its own, with its output collected, killed when this
// program ends. For programs that run other programs: quickstart, and the tests that kill training runs. Used by one
// thread, the main one.
//
//   FSDP_ASSIGN_OR_RETURN(auto child, Subprocess::Start({"bazel-bin/tools/ckpt", "verify", path}));
//   FSDP_ASSIGN_OR_RETURN(int status, child->Wait(absl::Seconds(10)));
#ifndef FSDP_BASE_SUBPROCESS_H_
#define FSDP_BASE_SUBPROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fsdp {

struct SubprocessOptions {
  std::map<std::string, std::string> environment = {};  // set beside what this process has
  std::vector<std::string> unset = {};                  // variables that the child is not to have
  std::string working_directory = {};                   // empty: this process's
};

class Subprocess {
 public:
  // Runs command[0], a path, with the arguments behind it; kNotFound when it cannot be run.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(const std::vector<std::string>& command,
                                                           const SubprocessOptions& options = {});

  // Kills the child's process group and waits for it.
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Blocks until the child ended or `timeout` is over (kDeadlineExceeded; it goes on). Returns its exit status, or 128
  // + n when signal n killed it. Reads its output meanwhile.
  absl::StatusOr<int> Wait(absl::Duration timeout);

  // As Wait, but nothing when the timeout is over.
  std::optional<int> Poll(absl::Duration timeout);

  // Blocks until its output contains `text`; kDeadlineExceeded, kFailedPrecondition when the child's output ended
  // before.
  absl::Status WaitForOutput(std::string_view text, absl::Duration timeout);

  // Sends `signal` to the child alone, or to its whole process group.
  void Signal(int signal);
  void SignalGroup(int signal);

  pid_t pid() const { return pid_; }

  // Its stdout and stderr, interleaved, as far as they were read.
  const std::string& output() const { return output_; }

 private:
  Subprocess(pid_t pid, int output_fd) : pid_(pid), output_fd_(output_fd) {}

  // Reads what there is; blocks for at most `timeout`. False when the output ended.
  bool ReadOutput(absl::Duration timeout);
  bool Reap();

  const pid_t pid_;
  const int output_fd_;
  std::string output_;
  bool output_ended_ = false;
  bool reaped_ = false;
  int wait_status_ = 0;
};

// Runs a command to its end: its exit status and output. kDeadlineExceeded, with what it printed, when it takes longer.
struct ProgramResult {
  int exit_status = 0;
  std::string output;
};
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                         const SubprocessOptions& options = {});

// The processes of this machine, but for this one, whose command line contains `text`: what is left of a run whose
// arguments name a directory that no other run uses. Zombies, and processes that are just starting, have no command
// line and are not counted.
std::vector<pid_t> ProcessesWith(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_BASE_SUBPROCESS_H_
