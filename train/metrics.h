// SPDX-License-Identifier: Apache-2.0
//
// The metrics of a run: one line of JSON for each step. MetricsWriter puts a line into the file as soon as its step is
// done, so a killed run has reported all its steps; ReadMetrics reads the lines back. Doubles are written with enough
// digits to read the same double back.
#ifndef FSDP_TRAIN_METRICS_H_
#define FSDP_TRAIN_METRICS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// A step, as in a line of the file.
struct StepMetrics {
  // Counted from 0.
  int64_t step = 0;

  // The mean over ranks and micro-steps, in nats per token.
  double loss = 0;

  // The 2-norm of all gradients before clipping. A value that is not finite is written as null.
  double grad_norm = 0;

  // The learning rate of the step's update.
  double lr = 0;

  // Tokens of all ranks.
  double tokens_per_second = 0;

  // Wall time since the end of the step before.
  double step_seconds = 0;

  // Most device memory that a rank had allocated so far, in bytes; the largest of the ranks.
  int64_t peak_bytes = 0;

  // The factor of the step's losses; absent without a gradient scaler. A step whose grad_norm is null was skipped.
  std::optional<double> scale = std::nullopt;

  // The share of rank 0's time in collectives, from 0 to 1, during which it computed (hidden_share.h); absent if it was
  // not measured.
  std::optional<double> hidden_share = std::nullopt;

  // True, and then written, for the first step of a run that continues from a checkpoint.
  bool restart = false;

  // True, and then written, for a step whose result is saved as a checkpoint. The line is written before the save, so
  // the last line of a run that was killed may announce a save that was never committed.
  bool save = false;
};

// "{"step":3,...}" without a newline, with the members in the order of the struct.
std::string MetricsLine(const StepMetrics& metrics);

// The step in a line without its newline. A null is NaN, and so are the words NaN, Infinity and -Infinity, which
// Python's json writes for such values. Further members are ignored. kInvalidArgument, with the line's beginning, for
// any other text.
absl::StatusOr<StepMetrics> ParseMetricsLine(std::string_view line);

// Used by one thread of one rank.
class MetricsWriter {
 public:
  enum class Mode {
    kTruncate,  // a new run
    kAppend,    // a resumed run; cuts off an incomplete last line, which a crash left
  };

  // kInvalidArgument, with the path and the system's reason, when the file cannot be opened or cut.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& path, Mode mode);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Appends a line by one write, so that no reader sees half of it. kInvalidArgument, with the path and the system's
  // reason, when that fails.
  absl::Status Write(const StepMetrics& metrics);

 private:
  MetricsWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
};

// The steps in a metrics file, in the order of its lines; a last line without a newline does not count yet, so a file
// may be read while a run writes it. A null is NaN. kNotFound when there is no file, kInvalidArgument naming the line
// that does not hold a step's metrics.
absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_METRICS_H_
