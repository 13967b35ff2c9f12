// SPDX-License-Identifier: Apache-2.0
//
// RunCurves: the metrics of a run, read from the lines of train_gpt --metrics in bounded memory: totals of all lines,
// and curves of a bounded number of points. Each point covers as many successive lines as it takes, and keeps their
// smallest and largest value, so that no spike is lost however long the run is.
//
//   lines      0 1 2 3 | 2 3 4 5 ...     the run was killed after step 3 and goes on from a checkpoint of step 2
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

// What has a curve. kGradNorm is before clipping; kHiddenShare is absent in runs that did not measure it.
enum class Curve : uint8_t { kLoss, kGradNorm, kLr, kTokensPerSecond, kPeakBytes, kHiddenShare };
inline constexpr int kCurves = 6;

// Lines of one file that begin anew: more are taken for a file that is not what it says.
inline constexpr int kMaxParts = 256;

// Values of one curve in the lines of a point.
struct CurveValues {
  int64_t finite = 0;     // how many values are finite
  int64_t nonfinite = 0;  // how many are NaN or infinite; a line without the value counts in neither

  // Of the finite values; without meaning where there are none.
  double min = 0;
  double max = 0;
  double mean = 0;

  void Add(double value);
  void Add(const CurveValues& other);
};

// Successive lines.
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
  // The step with which it begins.
  int64_t first_step = 0;
  std::vector<CurvePoint> points;
};

struct RunCurves {
  // As the user gave it.
  std::string path;

  // In the order of the file. A part but the first is a restart: a line says so, or its step is none that follows.
  std::vector<RunPart> parts;

  // Lines of steps; 0 for a run that has not finished one.
  int64_t lines = 0;

  // Lines that a point covers at most; 1: every line is a point.
  int64_t stride = 1;

  // Bytes after the last newline: what a run that was killed, or writes at this moment, leaves.
  int64_t unfinished_bytes = 0;

  // Lines whose step is saved, and the steps of some of them, at most kMaxSaveMarks, at equal distances.
  int64_t saves = 0;
  std::vector<int64_t> save_marks;

  // The last line.
  std::optional<StepMetrics> last;

  // Over all lines, of the finite values.
  std::array<CurveValues, kCurves> totals = {};
  int64_t best_step = 0;  // of the smallest loss
  double tokens = 0;
  double seconds = 0;  // of the steps, without what is between them

  const CurveValues& total(Curve curve) const { return totals[static_cast<int>(curve)]; }
  int64_t restarts() const { return parts.empty() ? 0 : static_cast<int64_t>(parts.size()) - 1; }
};

inline constexpr int64_t kMaxSaveMarks = 400;

// Reads the file at `path`, with at most 2 * `points` points and one more for each part. Reads a file that a run is
// writing up to its last whole line. kNotFound when it cannot be opened, kInvalidArgument with file and line for a line
// that is no step's metrics (ParseMetricsLine) or longer than 1 MiB, and for more than kMaxParts parts. Blocks on
// reads; memory does not grow with the file. Precondition: points > 0.
absl::StatusOr<RunCurves> ReadRunCurves(const std::string& path, int64_t points);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_RUN_CURVES_H_
