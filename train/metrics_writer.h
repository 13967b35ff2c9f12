// SPDX-License-Identifier: Apache-2.0
//
// MetricsWriter: one JSON line a step, in the file as soon as the step is done, so that a killed run has told all it
// knew. Doubles are written with as many digits as it takes to read the same double back. Used by one thread of one
// rank.
#ifndef FSDP_TRAIN_METRICS_WRITER_H_
#define FSDP_TRAIN_METRICS_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// One step, as reported.
struct StepMetrics {
  int64_t step = 0;      // from 0
  double loss = 0;       // mean over ranks and micro-steps
  double grad_norm = 0;  // before clipping; a value that is not finite is written as null
  double lr = 0;
  double tokens_per_second = 0;  // of all ranks
  double step_seconds = 0;       // wall time since the step before was done
  int64_t peak_bytes = 0;        // most device memory that a rank had allocated so far; the largest of the ranks
};

// "{"step":3,...}" without a newline.
std::string MetricsLine(const StepMetrics& metrics);

class MetricsWriter {
 public:
  enum class Mode {
    kTruncate,  // a new run
    kAppend,    // a resumed one; what a crash left of an unfinished last line is cut off
  };

  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& path, Mode mode);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Appends a line by one write, so that no reader sees half of it.
  absl::Status Write(const StepMetrics& metrics);

 private:
  MetricsWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_METRICS_WRITER_H_
