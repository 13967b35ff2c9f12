// SPDX-License-Identifier: Apache-2.0
//
// The lines of one ReadOutput are written at once. POSIX guarantees atomic writes only up to PIPE_BUF bytes (4096) on
// pipes, so with other writers to the same pipe long outputs may still be torn; within one launcher nothing is, since
// one thread writes for all ranks.
#include "fsdp/collectives/job/rank_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr size_t kLastLines = 20;

// Gives up on any error but EINTR: EPIPE when the reader is gone, EIO when the terminal is.
void WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) {
      return;
    }
    bytes.remove_prefix(n < 0 ? 0 : static_cast<size_t>(n));
  }
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

void RankOutput::Flush() { WriteAll(destination_, std::exchange(pending_, "")); }

}  // namespace fsdp
