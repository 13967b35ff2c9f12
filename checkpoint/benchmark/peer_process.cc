// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/peer_process.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace fsdp {

// One socket pair instead of two pipes: half as many descriptors to close, and reads and writes can fail without
// signals.
absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::vector<std::string>& command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("no socket pair: ", std::strerror(errno)));
  }
  FileDescriptor socket(ends[0]);
  const FileDescriptor childs(ends[1]);
  absl::StatusOr<std::unique_ptr<ChildProcess>> child =
      ChildProcess::Start(command, {.output = ChildOutput::Descriptor(childs.get()),
                                    .errors = ChildOutput::File("/dev/null"),
                                    .input_fd = childs.get()});
  if (!child.ok()) return absl::UnavailableError(child.status().message());
  return std::unique_ptr<PeerProcess>(new PeerProcess(*std::move(child), std::move(socket)));
}

PeerProcess::~PeerProcess() {
  socket_.Close();
  child_->Poll(absl::InfiniteDuration());
}

absl::StatusOr<double> PeerProcess::Ask(const std::string& question) {
  const std::string line = question + "\n";
  const bool is_sent = send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
  std::string answer;
  char next = 0;
  ssize_t n = 0;
  while (is_sent && next != '\n') {
    n = recv(socket_.get(), &next, 1, 0);
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
