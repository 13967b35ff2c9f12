// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_log.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/train/say.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<RunLog>> RunLog::Open(const TrainOptions& options, const RunStart& start,
                                                     ProcessGroup& group, std::shared_ptr<Trace> trace) {
  std::unique_ptr<RunLog> log(new RunLog(options, group, std::move(trace)));
  if (!log->is_rank0()) return log;
  if (!options.trace.empty()) {
    FSDP_ASSIGN_OR_RETURN(log->trace_file_, TraceFile::Open(options.trace));
  }
  if (!options.metrics.empty()) {
    const auto mode = start.resumed() ? MetricsWriter::Mode::kAppend : MetricsWriter::Mode::kTruncate;
    FSDP_ASSIGN_OR_RETURN(log->metrics_, MetricsWriter::Open(options.metrics, mode));
  }
  return log;
}

absl::Status RunLog::AddStep(const StepMetrics& metrics) {
  if (!is_rank0()) return absl::OkStatus();
  if (metrics_ != nullptr) FSDP_RETURN_IF_ERROR(metrics_->Write(metrics));
  SayProgress(metrics);
  return absl::OkStatus();
}

// The last step, and others twice a second.
void RunLog::SayProgress(const StepMetrics& metrics) {
  const absl::Time now = absl::Now();
  const bool last = metrics.step + 1 == options_.learning_rate.steps;
  if (!last && now - last_progress_ < absl::Milliseconds(500)) return;
  last_progress_ = now;
  Say("step %d of %d: loss %.4f, grad_norm %.3f, lr %.3g, %.0f tokens/s", metrics.step, options_.learning_rate.steps,
      metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens_per_second);
}

absl::Status RunLog::FinishTrace() {
  if (options_.trace.empty()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::vector<TraceSpan>> ranks, GatherSpans(group_, trace_->Spans()));
  FSDP_RETURN_IF_ERROR(AgreeOn(group_, is_rank0() ? trace_file_->Write(ranks) : absl::OkStatus()));
  if (is_rank0()) {
    Say("traced to %s%s", options_.trace, trace_->full() ? "; it has the beginning of the run only" : "");
  }
  return absl::OkStatus();
}

}  // namespace fsdp
