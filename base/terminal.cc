// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fsdp/base/escape_text.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/url_password.h"

namespace fsdp {
namespace {

// errno of the first write to stdout that failed, else 0. The stream itself only remembers that one did.
std::atomic<int> stdout_error = 0;

bool IsColoured() {
  const char* const no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && ObeysCommands(STDOUT_FILENO);
}

void WriteBytes(const std::string& bytes, std::FILE* stream) {
  // In one call, which holds the stream's lock.
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream) == bytes.size() || stream != stdout) return;
  int none = 0;
  stdout_error.compare_exchange_strong(none, errno);
}

std::string Escaped(std::string_view text) { return EscapeText(HidePasswords(text), "\n\t\"'\\"); }

}  // namespace

void WriteText(std::string_view text, std::FILE* stream) { WriteBytes(Escaped(text), stream); }

void WriteAlarm(std::string_view text) {
  const std::string escaped = Escaped(text);
  WriteBytes(IsColoured() ? "\x1b[31m" + escaped + "\x1b[0m" : escaped, stdout);
}

// The lowest free number is the one that open returns.
void KeepStandardStreams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // A root with only this program has no /dev.
    if (open("/dev/null", O_RDONLY) < 0) (void)!open("/", O_RDONLY);
  }
}

bool ObeysCommands(int descriptor) {
  const char* const term = std::getenv("TERM");
  return isatty(descriptor) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

int FinishOutput(std::string_view program, int exit_status) {
  if (std::fflush(stdout) != 0) {
    int none = 0;
    stdout_error.compare_exchange_strong(none, errno);
  }
  // A flush in between that failed has left only the mark of the stream.
  if (stdout_error == 0 && std::ferror(stdout) == 0) return exit_status;
  PrintError("%s: stdout: %s\n", program, stdout_error == 0 ? "a write failed" : std::strerror(stdout_error));
  return exit_status == kExitDone ? kExitFailed : exit_status;
}

}  // namespace fsdp
