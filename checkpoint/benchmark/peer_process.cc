// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/peer_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

extern char** environ;

namespace fsdp {
namespace {

// 0, or why `command` does not run with `socket` as its input and output.
int Spawn(const std::vector<std::string>& command, int socket, pid_t& child) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::vector<std::string>& command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("no socket pair: ", std::strerror(errno)));
  }
  pid_t child = 0;
  const int error = Spawn(command, ends[1], child);
  close(ends[1]);
  if (error == 0) return std::unique_ptr<PeerProcess>(new PeerProcess(child, ends[0]));
  close(ends[0]);
  return absl::UnavailableError(absl::StrCat("cannot start ", command[0], ": ", std::strerror(error)));
}

PeerProcess::~PeerProcess() {
  close(socket_);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<double> PeerProcess::Ask(const std::string& question) {
  const std::string line = question + "\n";
  const bool is_sent = send(socket_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
  std::string answer;
  char next = 0;
  ssize_t n = 0;
  while (is_sent && next != '\n') {
    n = recv(socket_, &next, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    answer.push_back(next);
  }
  if (next != '\n') return absl::UnavailableError(absl::StrCat("the program ended when asked for ", question));
  absl::string_view text = absl::StripAsciiWhitespace(answer);
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) return seconds;
  absl::ConsumePrefix(&text, "no: ");
  return absl::UnavailableError(text);
}

}  // namespace fsdp
