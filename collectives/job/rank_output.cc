// SPDX-License-Identifier: Apache-2.0
//
// Each write is at most PIPE_BUF bytes (4096): POSIX then neither blocks a write for which poll has found room nor
// splits it. A longer line may be split if the pipe has other writers. Within one launcher lines are never split,
// because one thread writes for all ranks.
#include "fsdp/collectives/job/rank_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

constexpr size_t kLastLines = 20;

// The bytes of the whole lines at the beginning of `text` that fit into PIPE_BUF; PIPE_BUF if none fits.
size_t NextWrite(absl::string_view text) {
  const absl::string_view most = text.substr(0, PIPE_BUF);
  const size_t end = most.rfind('\n');
  return end == absl::string_view::npos ? most.size() : end + 1;
}

}  // namespace

void LastLines::Add(absl::string_view line) {
  lines_.emplace_back(line);
  if (lines_.size() > kLastLines) {
    lines_.pop_front();
  }
}

RankOutput::RankOutput(int destination, std::string prefix, LastLines* last_lines)
    : destination_(destination), prefix_(std::move(prefix)), last_lines_(last_lines) {}

void RankOutput::Add(absl::string_view line) {
  absl::StrAppend(&pending_, prefix_, line, "\n");
  last_lines_->Add(line);
}

// Gives up on any error except EINTR: EPIPE when the reader is gone, EIO when the terminal is.
void RankOutput::Flush(int interrupt, absl::Time deadline) {
  absl::string_view rest = pending_;
  while (!rest.empty()) {
    pollfd ready[] = {{.fd = destination_, .events = POLLOUT, .revents = 0},
                      {.fd = interrupt, .events = POLLIN, .revents = 0}};
    const int n = poll(ready, 2, PollTimeout(deadline));
    if (n == 0 || (n > 0 && ready[0].revents == 0)) {
      break;
    }
    const ssize_t written = n < 0 ? n : write(destination_, rest.data(), NextWrite(rest));
    if (written < 0 && errno != EINTR) {
      if (error_ == 0 && errno != EPIPE && errno != EIO) error_ = errno;
      rest = {};
    }
    rest.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
  pending_.erase(0, pending_.size() - rest.size());
}

void RankOutput::DropBeyond(size_t bytes) {
  if (pending_.size() > bytes) {
    const size_t end = bytes == 0 ? std::string::npos : pending_.rfind('\n', bytes - 1);
    pending_.resize(end == std::string::npos ? 0 : end + 1);
  }
}

}  // namespace fsdp
