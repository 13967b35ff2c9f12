// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/metrics_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

absl::Status FileError(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: cannot %s: %s", path, what, std::strerror(errno)));
}

// Cuts `fd` behind its last newline.
absl::Status CutUnfinishedLine(int fd, const std::string& path) {
  off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return absl::OkStatus();  // a pipe has no last line
  char last = '\n';
  while (end > 0) {
    if (pread(fd, &last, 1, end - 1) != 1) return FileError(path, "read");
    if (last == '\n') break;
    --end;
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) return FileError(path, "read its size");
  if (info.st_size != end && ftruncate(fd, end) != 0) return FileError(path, "cut its unfinished last line off");
  return absl::OkStatus();
}

}  // namespace

std::string MetricsLine(const StepMetrics& metrics) {
  const nlohmann::ordered_json line = {
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},
      {"tokens_per_second", metrics.tokens_per_second},
      {"step_seconds", metrics.step_seconds},
      {"peak_bytes", metrics.peak_bytes},
  };
  return line.dump();
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& path, Mode mode) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::kTruncate ? O_TRUNC : 0);
  const int fd = open(path.c_str(), flags, 0666);
  if (fd < 0) return FileError(path, "open for writing");
  std::unique_ptr<MetricsWriter> writer(new MetricsWriter(fd, path));
  if (mode == Mode::kAppend) FSDP_RETURN_IF_ERROR(CutUnfinishedLine(fd, path));
  return writer;
}

MetricsWriter::~MetricsWriter() { close(fd_); }

absl::Status MetricsWriter::Write(const StepMetrics& metrics) {
  const std::string line = MetricsLine(metrics) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path_, "write");
    rest.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
