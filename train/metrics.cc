// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// A double represents every integer up to this.
constexpr int64_t kMaxStep = int64_t{1} << 53;

absl::Status FileError(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: cannot %s: %s", path, what, std::strerror(errno)));
}

// Cuts `fd` after its last newline. Reads backwards by single bytes, since an unfinished line is short.
absl::Status CutUnfinishedLine(int fd, const std::string& path) {
  off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return absl::OkStatus();  // a pipe has no last line
  char last = '\n';
  while (end > 0) {
    if (pread(fd, &last, 1, end - 1) != 1) return FileError(path, "read");
    if (last == '\n') break;
    --end;
  }
  // The common case needs no write: the file ends with a newline.
  struct stat info = {};
  if (fstat(fd, &info) != 0) return FileError(path, "read its size");
  if (info.st_size != end && ftruncate(fd, end) != 0) return FileError(path, "cut its unfinished last line off");
  return absl::OkStatus();
}

// True if `line` has all members of StepMetrics. Further members are ignored, so that newer files can be read.
bool IsMetrics(const nlohmann::json& line) {
  if (!line.is_object()) return false;
  for (const char* name : {"step", "loss", "grad_norm", "lr", "tokens_per_second", "step_seconds", "peak_bytes"}) {
    if (!line.contains(name) || !(line[name].is_number() || line[name].is_null())) return false;
  }
  // Optional members of newer versions; null is not among their values.
  for (const char* name : {"scale", "hidden_share"}) {
    if (line.contains(name) && !line[name].is_number()) return false;
  }
  for (const char* name : {"restart", "save"}) {
    if (line.contains(name) && !line[name].is_boolean()) return false;
  }
  // The members above may be null, but not these two.
  if (!line["step"].is_number_integer() || !line["peak_bytes"].is_number_integer()) return false;
  const auto step = line["step"].get<int64_t>();
  return step >= 0 && step <= kMaxStep;
}

double Number(const nlohmann::json& value) { return value.is_null() ? NAN : value.get<double>(); }

std::optional<double> Optional(const nlohmann::json& line, const char* name) {
  return line.contains(name) ? std::optional<double>(Number(line[name])) : std::nullopt;
}

StepMetrics Decode(const nlohmann::json& line) {
  return {.step = line["step"].get<int64_t>(),
          .loss = Number(line["loss"]),
          .grad_norm = Number(line["grad_norm"]),
          .lr = Number(line["lr"]),
          .tokens_per_second = Number(line["tokens_per_second"]),
          .step_seconds = Number(line["step_seconds"]),
          .peak_bytes = line["peak_bytes"].get<int64_t>(),
          .scale = Optional(line, "scale"),
          .hidden_share = Optional(line, "hidden_share"),
          .restart = line.value("restart", false),
          .save = line.value("save", false)};
}

// `line` with null for each NaN, Infinity and -Infinity that is not in a string.
std::string WithNulls(std::string_view line) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    // A quote after a backslash does not end the string.
    if (in_string && line[i] == '\\' && i + 1 < line.size()) {
      result += line[i++];
    } else if (line[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      bool found = false;
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (line.substr(i, word.size()) != word) continue;
        result += "null";
        i += word.size() - 1;
        found = true;
        break;
      }
      if (found) continue;
    }
    result += line[i];
  }
  return result;
}

nlohmann::json ParseJson(std::string_view text) {
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

// An ordered object, so that every line has its members in the same order. dump() writes the shortest text that reads
// back as the same double, and null for a number that is not finite.
std::string MetricsLine(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},
      {"tokens_per_second", metrics.tokens_per_second},
      {"step_seconds", metrics.step_seconds},
      {"peak_bytes", metrics.peak_bytes},
  };
  if (metrics.scale.has_value()) line["scale"] = *metrics.scale;
  if (metrics.hidden_share.has_value()) line["hidden_share"] = *metrics.hidden_share;
  if (metrics.restart) line["restart"] = true;
  if (metrics.save) line["save"] = true;
  return line.dump();
}

absl::StatusOr<StepMetrics> ParseMetricsLine(std::string_view line) {
  constexpr size_t kShown = 200;
  nlohmann::json json = ParseJson(line);
  // Only then: most lines are valid JSON, and need not be copied.
  if (json.is_discarded()) json = ParseJson(WithNulls(line));
  if (IsMetrics(json)) return Decode(json);
  return absl::InvalidArgumentError(absl::StrFormat("is not a JSON object with a step's metrics: %s%s",
                                                    Printable(line.substr(0, kShown)),
                                                    line.size() > kShown ? "..." : ""));
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& path, Mode mode) {
  // Readable too, for the search for the last newline.
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::kTruncate ? O_TRUNC : 0);
  const int fd = open(path.c_str(), flags, 0666);
  if (fd < 0) return FileError(path, "open for writing");
  std::unique_ptr<MetricsWriter> writer(new MetricsWriter(fd, path));
  if (mode == Mode::kAppend) FSDP_RETURN_IF_ERROR(CutUnfinishedLine(fd, path));
  return writer;
}

MetricsWriter::~MetricsWriter() { close(fd_); }

// O_APPEND and one write() of a whole line, so a reader never sees half of it unless the disk is full; a short write is
// continued.
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

// A line counts once it has its newline: the writing run may be in the middle of it.
absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrFormat("%s: cannot be opened", path));
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::vector<StepMetrics> steps;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    absl::StatusOr<StepMetrics> step = ParseMetricsLine(std::string_view(text).substr(begin, end - begin));
    FSDP_RETURN_IF_ERROR(Annotate(step.status(), absl::StrFormat("%s, line %d", path, steps.size() + 1)));
    steps.push_back(*std::move(step));
    begin = end + 1;
  }
  return steps;
}

}  // namespace fsdp
