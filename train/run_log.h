// SPDX-License-Identifier: Apache-2.0
//
// RunLog: what a run leaves about its steps, for people and programs: lines of progress on stdout, --metrics and
// --trace. Rank 0 writes all of it. Every rank has one and calls it alike; used by one thread.
#ifndef FSDP_TRAIN_RUN_LOG_H_
#define FSDP_TRAIN_RUN_LOG_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/run_start.h"
#include "fsdp/train/trace_file.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

class RunLog {
 public:
  // Opens the files that `options` name, on rank 0, so that a path that cannot be written is an error before training
  // and not after it. `options` and `group` are the caller's and outlive the log; `trace` is null without --trace. Not
  // collective.
  static absl::StatusOr<std::unique_ptr<RunLog>> Open(const TrainOptions& options, const RunStart& start,
                                                      ProcessGroup& group, std::shared_ptr<Trace> trace);

  // Writes what is to be written of a step. Not collective. An error of a file ends the run: its owner wanted it whole.
  absl::Status AddStep(const StepMetrics& metrics);

  // Writes the trace. Call once, after the last step and once the streams have run. Collective.
  absl::Status FinishTrace();

 private:
  RunLog(const TrainOptions& options, ProcessGroup& group, std::shared_ptr<Trace> trace)
      : options_(options), group_(group), trace_(std::move(trace)) {}

  bool is_rank0() const { return group_.rank() == 0; }
  void SayProgress(const StepMetrics& metrics);

  const TrainOptions& options_;
  ProcessGroup& group_;
  const std::shared_ptr<Trace> trace_;

  // Null unless asked for, and on other ranks than 0.
  std::unique_ptr<TraceFile> trace_file_;
  std::unique_ptr<MetricsWriter> metrics_;

  // When a line of progress was last printed.
  absl::Time last_progress_ = absl::InfinitePast();
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_LOG_H_
