// SPDX-License-Identifier: Apache-2.0
//
// RunLog: a run's output about its steps, for people and programs: progress lines on stdout, --metrics, --tensorboard
// and --trace. Rank 0 writes all of it. Every rank has one and makes the same calls; used by one thread.
#ifndef FSDP_TRAIN_RUN_LOG_H_
#define FSDP_TRAIN_RUN_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/train/event_file.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/run_start.h"
#include "fsdp/train/trace_file.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

class RunLog {
 public:
  // The trace for the model: with --trace, and on rank 0 with --tensorboard, which shows how much of the communication
  // is hidden, but not with --cuda_graph, whose work the host does not see. Null: no trace.
  static std::shared_ptr<Trace> MakeTrace(const TrainOptions& options, const ProcessGroup& group);

  // Opens the files of `options`, on rank 0, so that a path that cannot be written is an error before training, not
  // after it. `options` and `group` are owned by the caller and must outlive the log; `trace` is MakeTrace's. Not
  // collective.
  static absl::StatusOr<std::unique_ptr<RunLog>> Open(const TrainOptions& options, const RunStart& start,
                                                      ProcessGroup& group, std::shared_ptr<Trace> trace);

  // Writes a step to all outputs. Not collective. An error of a file ends the run: the user wants the file complete.
  absl::Status AddStep(StepMetrics metrics);

  // Marks that a checkpoint was saved after `step`, with the text of CheckpointSaver::Save, while training waited for
  // `seconds`. Not collective.
  absl::Status AddSave(int64_t step, const std::string& saved, double seconds);

  // Writes the trace. Call once, after the last step and once the streams have run. Collective.
  absl::Status FinishTrace();

 private:
  RunLog(const TrainOptions& options, const RunStart& start, ProcessGroup& group, std::shared_ptr<Trace> trace)
      : options_(options), group_(group), trace_(std::move(trace)), is_restart_(start.resumed()) {}

  bool is_rank0() const { return group_.rank() == 0; }
  absl::Status OpenEvents(const RunStart& start);
  absl::Status WriteEvents(const StepMetrics& metrics);
  std::optional<double> MeasureHiddenShare();
  void SayProgress(const StepMetrics& metrics);

  const TrainOptions& options_;
  ProcessGroup& group_;
  const std::shared_ptr<Trace> trace_;

  // Null unless requested, and on ranks other than 0.
  std::unique_ptr<TraceFile> trace_file_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<EventFile> events_;

  // With --trace, rank 0's spans taken from trace_ for the hidden share: at most kMaxSpans.
  std::vector<TraceSpan> spans_;
  bool left_out_ = false;

  // True until the first step of a run that continues from a checkpoint was added.
  bool is_restart_;

  // When a line of progress was last printed.
  absl::Time last_progress_ = absl::InfinitePast();
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_LOG_H_
