// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/rank_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kLongestLine = 1 << 16;  // a longer one is cut into several

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) {
      return;  // nobody wants our output; the ranks' work goes on
    }
    bytes.remove_prefix(n < 0 ? 0 : static_cast<size_t>(n));
  }
}

}  // namespace

void LastLines::Add(std::string line) {
  lines_.push_back(std::move(line));
  if (lines_.size() > kLastLines) {
    lines_.pop_front();
  }
}

RankOutput::RankOutput(int source, int destination, std::string prefix, LastLines* last_lines)
    : source_(source), destination_(destination), prefix_(std::move(prefix)), last_lines_(last_lines) {}

// A bounded number of reads, so that a rank that never stops writing does not keep its launcher from the others.
bool RankOutput::Pass() {
  bool open = true;
  for (int reads = 0; reads < 16; ++reads) {
    char bytes[1 << 14];
    const ssize_t n = read(source_, bytes, sizeof(bytes));
    if (n <= 0) {
      open = n < 0 && (errno == EAGAIN || errno == EINTR);
      break;
    }
    Take({bytes, static_cast<size_t>(n)});
  }
  if (!open && !line_.empty()) {
    EndLine();
  }
  WriteAll(destination_, std::exchange(pending_, ""));
  return open;
}

void RankOutput::Take(std::string_view bytes) {
  for (const char c : bytes) {
    if (c != '\n') {
      line_ += c;
    }
    if (c == '\n' || line_.size() >= kLongestLine) {
      EndLine();
    }
  }
}

void RankOutput::EndLine() {
  absl::StrAppend(&pending_, prefix_, line_, "\n");
  last_lines_->Add(std::exchange(line_, ""));
}

}  // namespace fsdp
