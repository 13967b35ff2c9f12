// SPDX-License-Identifier: Apache-2.0
//
// One pass over the file. As long as points fit, each covers `stride` lines, at first one. If there are too many, the
// stride doubles and neighbours within a part are merged, so a point always covers a whole number of earlier ones and
// the result does not depend on the sizes of the reads.
#include "fsdp/tools/curves/run_curves.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr size_t kMaxLine = size_t{1} << 20;

CurvePoint PointOf(const StepMetrics& line) {
  CurvePoint point = {.first_step = line.step, .last_step = line.step, .lines = 1};
  const auto add = [&](Curve curve, double value) { point.values[static_cast<int>(curve)].Add(value); };
  add(Curve::kLoss, line.loss);
  add(Curve::kGradNorm, line.grad_norm);
  add(Curve::kLr, line.lr);
  add(Curve::kTokensPerSecond, line.tokens_per_second);
  add(Curve::kPeakBytes, static_cast<double>(line.peak_bytes));
  if (line.hidden_share) add(Curve::kHiddenShare, *line.hidden_share);
  return point;
}

using OpenedFile = std::unique_ptr<FILE, int (*)(FILE*)>;

// O_NONBLOCK: the open of a FIFO would wait for its writer.
absl::StatusOr<OpenedFile> OpenToRead(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  OpenedFile file(fdopen(fd, "rb"), &std::fclose);
  struct stat info = {};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return file;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is not a regular file; expected a file that train_gpt --metrics wrote"));
}

class CurveBuilder {
 public:
  CurveBuilder(RunCurves& run, int64_t points) : run_(run), points_(points) {}

  absl::Status Add(const StepMetrics& line);

 private:
  void AddTotals(const StepMetrics& line, const CurvePoint& point);
  void AddSave(int64_t step);
  void Thin();

  RunCurves& run_;
  const int64_t points_;
  int64_t count_ = 0;        // points in all parts
  int64_t save_stride_ = 1;  // saves for each mark
};

absl::Status CurveBuilder::Add(const StepMetrics& line) {
  // A step that does not grow is a restart too, also without the mark in the line.
  if (run_.parts.empty() || line.restart || line.step <= run_.last->step) {
    if (run_.parts.size() == kMaxParts) {
      return absl::InvalidArgumentError(
          absl::StrCat("is the ", kMaxParts, "th restart, and at most ", kMaxParts - 1,
                       " are drawn; expected steps that grow: split the file or leave lines out"));
    }
    run_.parts.push_back({.first_step = line.step, .points = {}});
  }
  const CurvePoint point = PointOf(line);
  AddTotals(line, point);
  std::vector<CurvePoint>& points = run_.parts.back().points;
  if (!points.empty() && points.back().lines < run_.stride) {
    points.back().Add(point);
    return absl::OkStatus();
  }
  points.push_back(point);
  // The last point of each part may be short, so each part may have one more than its share.
  if (++count_ > 2 * points_ + static_cast<int64_t>(run_.parts.size())) Thin();
  return absl::OkStatus();
}

void CurveBuilder::AddTotals(const StepMetrics& line, const CurvePoint& point) {
  if (std::isfinite(line.loss) && (run_.total(Curve::kLoss).finite == 0 || line.loss < run_.total(Curve::kLoss).min)) {
    run_.best_step = line.step;
  }
  for (int i = 0; i < kCurves; ++i) run_.totals[i].Add(point.values[i]);
  // tokens_per_second is over the step's own seconds, so the product counts its tokens.
  const double tokens = line.tokens_per_second * line.step_seconds;
  if (std::isfinite(tokens)) {
    run_.tokens += tokens;
    run_.seconds += line.step_seconds;
  }
  if (line.save) AddSave(line.step);
  ++run_.lines;
  run_.last = line;
}

void CurveBuilder::AddSave(int64_t step) {
  if (run_.saves++ % save_stride_ != 0) return;
  std::vector<int64_t>& marks = run_.save_marks;
  marks.push_back(step);
  if (static_cast<int64_t>(marks.size()) <= kMaxSaveMarks) return;
  save_stride_ *= 2;
  // Every second mark, from the first: the next mark then follows at the doubled distance.
  for (size_t i = 0; 2 * i < marks.size(); ++i) marks[i] = marks[2 * i];
  marks.resize((marks.size() + 1) / 2);
}

void CurveBuilder::Thin() {
  run_.stride *= 2;
  count_ = 0;
  for (RunPart& part : run_.parts) {
    std::vector<CurvePoint> thinned;
    for (const CurvePoint& point : part.points) {
      // Points of different parts are never merged: a restart begins a line of its own.
      if (!thinned.empty() && thinned.back().lines + point.lines <= run_.stride) {
        thinned.back().Add(point);
      } else {
        thinned.push_back(point);
      }
    }
    part.points = std::move(thinned);
    count_ += static_cast<int64_t>(part.points.size());
  }
}

}  // namespace

// Updates the mean instead of keeping a sum, which could overflow.
void CurveValues::Add(double value) {
  if (!std::isfinite(value)) {
    ++nonfinite;
    return;
  }
  Add({.finite = 1, .min = value, .max = value, .mean = value});
}

void CurveValues::Add(const CurveValues& other) {
  nonfinite += other.nonfinite;
  if (other.finite == 0) return;
  min = finite == 0 ? other.min : std::min(min, other.min);
  max = finite == 0 ? other.max : std::max(max, other.max);
  const double share = static_cast<double>(other.finite) / static_cast<double>(finite + other.finite);
  mean = mean * (1 - share) + other.mean * share;
  finite += other.finite;
}

void CurvePoint::Add(const CurvePoint& other) {
  last_step = other.last_step;
  lines += other.lines;
  for (int i = 0; i < kCurves; ++i) values[i].Add(other.values[i]);
}

absl::StatusOr<RunCurves> ReadRunCurves(const std::string& path, int64_t points) {
  FSDP_ASSIGN_OR_RETURN(const OpenedFile file, OpenToRead(path));
  RunCurves run;
  run.path = path;
  run.name = path;
  CurveBuilder builder(run, points);
  std::string buffer(kMaxLine, '\0');
  size_t held = 0;  // bytes at the beginning of the buffer, without a newline so far
  for (size_t got = 1; got > 0;) {
    const auto place = [&] { return absl::StrCat(path, ", line ", run.lines + 1); };
    if (held == buffer.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place(), ": is longer than 1 MiB; expected a JSON object with a step's metrics"));
    }
    got = std::fread(buffer.data() + held, 1, buffer.size() - held, file.get());
    if (std::ferror(file.get()) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
    }
    const std::string_view text(buffer.data(), held + got);
    size_t begin = 0;
    // The held bytes have no newline: search only the new ones.
    for (size_t end = text.find('\n', held); end != std::string_view::npos; end = text.find('\n', begin)) {
      const absl::StatusOr<StepMetrics> line = ParseMetricsLine(text.substr(begin, end - begin));
      FSDP_RETURN_IF_ERROR(Annotate(line.status(), place()));
      FSDP_RETURN_IF_ERROR(Annotate(builder.Add(*line), place()));
      begin = end + 1;
    }
    held = text.size() - begin;
    std::memmove(buffer.data(), buffer.data() + begin, held);
  }
  // Not a line yet: the run was killed, or is writing it.
  run.unfinished_bytes = static_cast<int64_t>(held);
  return run;
}

}  // namespace fsdp
