// SPDX-License-Identifier: Apache-2.0
//
// ChildProcess: the only way in which this repository starts another program. The child leads its own process group and
// cannot outlive its parent: the kernel sends it SIGKILL when the thread that started it ends, for any reason
// (PR_SET_PDEATHSIG), so start children from a thread that lives as long as they should. Abseil does not start
// processes, and posix_spawn cannot set a parent death signal.
//
//   FSDP_ASSIGN_OR_RETURN(auto child, ChildProcess::Start({"bazel-bin/tools/ckpt", "verify", path}));
//   FSDP_ASSIGN_OR_RETURN(int status, child->Wait(absl::Seconds(10)));
//
// Used by one thread. The child's output is read only inside of Wait, Poll, WaitForOutput and ReadOutput: a child whose
// output is captured blocks once the pipe is full (64 KiB) if the parent calls none of them.
#ifndef FSDP_BASE_CHILD_PROCESS_H_
#define FSDP_BASE_CHILD_PROCESS_H_

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// The destination of a child's stdout or stderr.
class ChildOutput {
 public:
  static ChildOutput Inherit() { return ChildOutput(Kind::kInherit); }  // the stream of this process
  static ChildOutput Text() { return ChildOutput(Kind::kText); }        // collected: ChildProcess::output(), errors()
  static ChildOutput SameAsOutput() { return ChildOutput(Kind::kSameAsOutput); }  // stderr only: same as stdout
  static ChildOutput File(std::string path);                                      // created, or emptied; "/dev/null"
  static ChildOutput Descriptor(int fd);  // not owned; 3 or more, open until Start returns

  // Calls `on_line` for every line, without its newline, on the thread that reads the output. A line longer than 64 KiB
  // comes in pieces of 64 KiB; a last line without newline comes when the stream ends.
  static ChildOutput Lines(std::function<void(absl::string_view line)> on_line);

 private:
  friend class ChildProcess;
  enum class Kind { kInherit, kText, kSameAsOutput, kFile, kDescriptor, kLines };
  explicit ChildOutput(Kind kind) : kind_(kind) {}

  Kind kind_;
  std::string path_;
  int fd_ = -1;
  std::function<void(absl::string_view)> on_line_;
};

// Environment, directory and streams of a child. Defaults: the environment and directory of this process, /dev/null as
// stdin, and stdout and stderr collected, interleaved.
struct ChildOptions {
  std::map<std::string, std::string> environment = {};  // added to the variables of this process, or replacing them
  std::vector<std::string> unset = {};                  // variables of this process that the child does not get
  std::string working_directory = {};                   // empty: the directory of this process
  ChildOutput output = ChildOutput::Text();
  ChildOutput errors = ChildOutput::SameAsOutput();
  int input_fd = -1;      // becomes stdin; not owned; 3 or more. -1: stdin is /dev/null
  int inherited_fd = -1;  // stays open in the child under its number; other descriptors with FD_CLOEXEC close
};

// How a process ended.
struct ExitStatus {
  int code = 0;            // its exit status; 0 if a signal killed it
  int signal = 0;          // the signal that killed it; 0 if it exited
  int64_t peak_bytes = 0;  // its largest resident set

  bool ok() const { return code == 0 && signal == 0; }

  // As a shell reports it: the exit status, or 128 + signal.
  int shell_code() const { return signal == 0 ? code : 128 + signal; }

  // "exited with status 3", "was killed by signal 9 (Killed)"
  std::string ToString() const;
};

class ChildProcess {
 public:
  // Runs `command`, a program and its arguments, with no signal blocked. A program without a slash is looked up in
  // $PATH; with a working directory it must be an absolute path or have no slash. Returns after the program was
  // executed, or with an error: kNotFound, kPermissionDenied if it is not executable, kInvalidArgument if the kernel
  // refuses it, kResourceExhausted if there are too many processes or descriptors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& command,
                                                             const ChildOptions& options = {});

  // Kills the child's process group and waits for the child, unless it was reaped.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The number of the child and of its process group. After the child was reaped, the kernel may give it to another
  // process.
  int pid() const { return pid_; }

  // Blocks until the child has ended. Returns ExitStatus::shell_code(), or kDeadlineExceeded with the output so far
  // after `timeout`; the child then keeps running.
  absl::StatusOr<int> Wait(absl::Duration timeout);

  // As Wait, but returns nullopt after `timeout`.
  std::optional<int> Poll(absl::Duration timeout);

  // Blocks until output() contains `text`. kDeadlineExceeded after `timeout`, kFailedPrecondition if the output ended
  // without it.
  absl::Status WaitForOutput(absl::string_view text, absl::Duration timeout);

  // Sends `signal` to the child only, or to its process group: the child and its descendants that did not leave the
  // group. No effect after the child was reaped.
  void Signal(int signal) const;
  void SignalGroup(int signal) const;

  // Whether the child has a handler for `signal` or blocks it, as programs do that read it from a signalfd or with
  // sigwait: it may then have work to finish before the signal ends it. False after the child was reaped, and if /proc
  // does not have this information.
  bool Catches(int signal) const;

  // The output that ChildOutput::Text has collected so far; empty for streams with another target.
  const std::string& output() const { return output_.text; }
  const std::string& errors() const { return errors_.text; }

  // How the child ended; nullopt if it was not reaped yet.
  const std::optional<ExitStatus>& exit_status() const { return exit_status_; }

  // For a parent with its own event loop; none of these blocks. AppendPollFds appends the descriptors for poll():
  // captured output and the end of the child. poll() has to return by PollDeadline, which is in 20 ms on kernels before
  // Linux 5.3, because they have no descriptor for that end. ReadOutput reads from the pipes, at most 256 KiB from
  // each, so that a child that never stops writing does not hold up the loop. Reap, if the child has ended, kills the
  // rest of its process group and returns exit_status().
  void AppendPollFds(std::vector<pollfd>& polled) const;
  absl::Time PollDeadline() const;
  void ReadOutput();
  const std::optional<ExitStatus>& Reap();

 private:
  // The reading end of a captured stream.
  struct Stream {
    FileDescriptor fd;  // non-blocking; closed at the end of the stream, and if the stream is not captured
    std::string text;
    std::string line;                                // the beginning of a line whose end was not read yet
    std::function<void(absl::string_view)> on_line;  // null: the bytes go to `text`

    // Takes the bytes that are in the pipe, at most 256 KiB. At the end of the stream, or after an error, closes `fd`
    // and passes an unfinished last line to `on_line`.
    void Read();
    // Appends the bytes to `text`, or cuts them into lines for `on_line`.
    void Take(absl::string_view bytes);
  };

  // Opens the writing end of a stream. Returns a closed descriptor if the child uses the stream of this process.
  static absl::StatusOr<FileDescriptor> Open(const ChildOutput& target, Stream& stream);

  ChildProcess() = default;

  // Blocks until the child ends, its captured output grows or ends, `deadline` or PollDeadline.
  void AwaitEvent(absl::Time deadline) const;
  // Blocks until the child ends, kills the rest of its process group, and sets exit_status_.
  void ReapBlocking();

  int pid_ = -1;
  FileDescriptor ended_;  // a pidfd: readable after the end of the child; closed if the kernel has no pidfds
  Stream output_;
  Stream errors_;
  std::optional<ExitStatus> exit_status_;
};

// Runs a command to its end. If it takes longer than `timeout`, kills it and returns kDeadlineExceeded with its output
// so far.
struct ProgramResult {
  int exit_status = 0;  // ExitStatus::shell_code()
  std::string output;
  std::string errors;  // empty if they go to `output`, which is the default
  int64_t peak_bytes = 0;
};
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                         const ChildOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_BASE_CHILD_PROCESS_H_
