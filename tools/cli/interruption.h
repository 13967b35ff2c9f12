// SPDX-License-Identifier: Apache-2.0
//
// Interruption: SIGINT, SIGTERM and SIGHUP while a command writes. The default action would leave a half-written output
// under a hidden name, as large as it is. Instead, the next change of a file fails, the library removes what it has
// made, and then the signal ends the program as it would have. Until something has been made, and half a second after
// the first signal, a signal has its default action.
//
//   Interruption interruption;
//   options.file_system = &interruption.files();
//   ... the conversion, which fails with kCancelled if there is a signal ...
//   interruption.EndProgramIfInterrupted("ckpt convert", destination, status);
#ifndef FSDP_TOOLS_CLI_INTERRUPTION_H_
#define FSDP_TOOLS_CLI_INTERRUPTION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// One at a time in a program.
class Interruption final {
 public:
  Interruption();
  ~Interruption();  // restores the actions of the signals
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // The operating system's file system. After a signal, what makes or writes a file fails with kCancelled; what
  // removes or reads one, makes it durable, or ends a rename still works. Thread-safe.
  FileSystem& files();

  // If there was a signal: says so on stderr, with what has become of `output`, and ends the program by that signal, so
  // that a shell sees what it would have seen. `status`: how the work ended. Call it when the files are closed.
  void EndProgramIfInterrupted(const std::string& program, const std::string& output, const absl::Status& status);

 private:
  const std::unique_ptr<FileSystem> files_;
};

// For work of which an interruption leaves nothing to remove: until it is destroyed, the first such signal prints
// `text` and a line end on stderr, and ends the program by that signal. One at a time.
class InterruptionNotice final {
 public:
  explicit InterruptionNotice(const std::string& text);
  ~InterruptionNotice();  // restores the actions of the signals
  InterruptionNotice(const InterruptionNotice&) = delete;
  InterruptionNotice& operator=(const InterruptionNotice&) = delete;

 private:
  const std::string text_;
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_INTERRUPTION_H_
