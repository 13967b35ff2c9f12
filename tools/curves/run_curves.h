// SPDX-License-Identifier: Apache-2.0
//
// RunCurves: the metrics of a run, read from the lines of train_gpt --metrics in bounded memory: totals of all lines,
// and curves of a bounded number of points. Each point covers as many successive lines as necessary, and keeps their
// smallest and largest value, so that no spike is lost in a run of any length.
//
//   lines      0 1 2 3 | 2 3 4 5 ...     the run was killed after step 3 and continues from a checkpoint of step 2
//   parts      [0 ... 3] [2 ... 5 ...]   a point never covers lines of two parts
#ifndef FSDP_TOOLS_CURVES_RUN_CURVES_H_
#define FSDP_TOOLS_CURVES_RUN_CURVES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/train/metrics.h"

namespace fsdp {

// The values with a curve. kGradNorm is before clipping; kHiddenShare is absent in runs that did not measure it.
enum class Curve : uint8_t { kLoss, kGradNorm, kLr, kTokensPerSecond, kPeakBytes, kHiddenShare };
inline constexpr int kCurves = 6;

// The most restarts in one file: a file with more is not a file of metrics.
inline constexpr int kMaxParts = 256;

// The values of one curve in the lines of a point.
struct CurveValues {
  int64_t finite = 0;     // how many values are finite
  int64_t nonfinite = 0;  // how many are NaN or infinite; a line without the value counts in neither

  // Over the finite values; undefined without one.
  double min = 0;
  double max = 0;
  double mean = 0;

  void Add(double value);
  void Add(const CurveValues& other);
};

// A point: successive lines.
struct CurvePoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  int64_t lines = 0;
  std::array<CurveValues, kCurves> values = {};

  const CurveValues& of(Curve curve) const { return values[static_cast<int>(curve)]; }
  void Add(const CurvePoint& other);
};

// The lines from one start of the run to the next.
struct RunPart {
  // The first step of the part.
  int64_t first_step = 0;
  std::vector<CurvePoint> points;
};

struct RunCurves {
  // As the user gave it.
  std::string path;

  // What a page calls it (run_names.h); the path until someone gives it a name.
  std::string name;

  // In the order of the file. Each part but the first is a restart: a line records it, or its step does not follow the
  // last.
  std::vector<RunPart> parts;

  // Lines of steps; 0 for a run that has not finished one.
  int64_t lines = 0;

  // The most lines that a point covers; 1: every line is a point.
  int64_t stride = 1;

  // Bytes after the last newline: from a run that was killed or is writing at this moment.
  int64_t unfinished_bytes = 0;

  // The number of lines whose step is saved, and the steps of some of them, at most kMaxSaveMarks, at equal distances.
  int64_t saves = 0;
  std::vector<int64_t> save_marks;

  // The last line.
  std::optional<StepMetrics> last;

  // Over all lines, of the finite values.
  std::array<CurveValues, kCurves> totals = {};
  int64_t best_step = 0;  // of the smallest loss
  double tokens = 0;
  double seconds = 0;  // of the steps, without the time between them

  const CurveValues& total(Curve curve) const { return totals[static_cast<int>(curve)]; }
  int64_t restarts() const { return parts.empty() ? 0 : static_cast<int64_t>(parts.size()) - 1; }
};

inline constexpr int64_t kMaxSaveMarks = 400;

// Reads the file at `path`, with at most 2 * `points` points and one more for each part. Reads a file that a run is
// writing up to its last complete line. kNotFound if it cannot be opened, kInvalidArgument with file and line for a
// line that is not a step's metrics (ParseMetricsLine) or is longer than 1 MiB, and for more than kMaxParts parts.
// Blocks on reads; memory does not grow with the file. Precondition: points > 0.
absl::StatusOr<RunCurves> ReadRunCurves(const std::string& path, int64_t points);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_RUN_CURVES_H_
