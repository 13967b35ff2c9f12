// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_log.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/train/hidden_share.h"
#include "fsdp/train/say.h"

namespace fsdp {
namespace {

// A Trace keeps as many.
constexpr size_t kMaxSpans = 200'000;

// Makes the directories above the file that a flag names, as --checkpoint_dir and --tensorboard are made.
absl::Status MakeDirectoriesAbove(const char* flag, const std::string& path) {
  return Annotate(MakeDirectories(PosixFileSystem(), SplitPath(path).directory),
                  absl::StrFormat("--%s=%s", flag, path));
}

}  // namespace

std::shared_ptr<Trace> RunLog::MakeTrace(const TrainOptions& options, const ProcessGroup& group) {
  // A replayed graph runs without the host, which therefore sees no spans.
  const bool measures = !options.tensorboard.empty() && !options.cuda_graph && !options.print_schedule;
  return !options.trace.empty() || (measures && group.rank() == 0) ? Trace::Create() : nullptr;
}

absl::StatusOr<std::unique_ptr<RunLog>> RunLog::Open(const TrainOptions& options, const RunStart& start,
                                                     ProcessGroup& group, std::shared_ptr<Trace> trace) {
  std::unique_ptr<RunLog> log(new RunLog(options, start, group, std::move(trace)));
  if (!log->is_rank0()) return log;
  if (!options.trace.empty()) {
    FSDP_RETURN_IF_ERROR(MakeDirectoriesAbove("trace", options.trace));
    FSDP_ASSIGN_OR_RETURN(log->trace_file_, TraceFile::Open(options.trace));
  }
  if (!options.metrics.empty()) {
    FSDP_RETURN_IF_ERROR(MakeDirectoriesAbove("metrics", options.metrics));
    const auto mode = start.resumed() ? MetricsWriter::Mode::kAppend : MetricsWriter::Mode::kTruncate;
    FSDP_ASSIGN_OR_RETURN(log->metrics_, MetricsWriter::Open(options.metrics, mode));
  }
  if (!options.tensorboard.empty()) FSDP_RETURN_IF_ERROR(log->OpenEvents(start));
  return log;
}

absl::Status RunLog::OpenEvents(const RunStart& start) {
  absl::StatusOr<std::unique_ptr<EventFile>> events = EventFile::Create(options_.tensorboard, start.step);
  FSDP_RETURN_IF_ERROR(Annotate(events.status(), "--tensorboard"));
  events_ = *std::move(events);
  if (!start.resumed()) return absl::OkStatus();
  return events_->WriteText(
      start.step, "restart",
      absl::StrFormat("continues from %s on %d ranks: %d steps are done", start.checkpoint, group_.size(), start.step));
}

absl::Status RunLog::AddStep(StepMetrics metrics) {
  if (!is_rank0()) return absl::OkStatus();
  metrics.restart = std::exchange(is_restart_, false);
  if (events_ != nullptr) {
    // Every step must take the spans, or they would count for a later step.
    metrics.hidden_share = MeasureHiddenShare();
    FSDP_RETURN_IF_ERROR(WriteEvents(metrics));
  }
  // Before progress is printed, so that a reader of the output finds the line in the file.
  if (metrics_ != nullptr) FSDP_RETURN_IF_ERROR(metrics_->Write(metrics));
  SayProgress(metrics);
  return absl::OkStatus();
}

absl::Status RunLog::WriteEvents(const StepMetrics& metrics) {
  const auto scalar = [](const char* tag, double value) { return EventScalar{tag, static_cast<float>(value)}; };
  std::vector<EventScalar> scalars = {scalar("train/loss", metrics.loss), scalar("train/grad_norm", metrics.grad_norm),
                                      scalar("train/lr", metrics.lr),
                                      scalar("speed/tokens_per_second", metrics.tokens_per_second),
                                      scalar("memory/peak_bytes", static_cast<double>(metrics.peak_bytes))};
  if (metrics.hidden_share) scalars.push_back(scalar("speed/hidden_share", *metrics.hidden_share));
  if (metrics.scale) scalars.push_back(scalar("train/scale", *metrics.scale));
  return events_->WriteScalars(metrics.step, scalars);
}

absl::Status RunLog::AddSave(int64_t step, const std::string& saved, double seconds) {
  if (events_ == nullptr) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(events_->WriteText(step, "checkpoint", saved));
  return events_->WriteScalars(step, {{"checkpoint/blocked_seconds", static_cast<float>(seconds)}});
}

// A step's collectives have ended when its gradients were clipped; its update may still run, and counts for the next
// step.
std::optional<double> RunLog::MeasureHiddenShare() {
  if (trace_ == nullptr) return std::nullopt;
  const std::vector<TraceSpan> taken = trace_->TakeSpans();
  if (!options_.trace.empty()) {
    const size_t room = std::min(taken.size(), kMaxSpans - spans_.size());
    left_out_ |= room < taken.size();
    spans_.insert(spans_.end(), taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(room));
  }
  return HiddenShare(taken);
}

// Prints the last step, and others at most twice a second.
void RunLog::SayProgress(const StepMetrics& metrics) {
  const absl::Time now = SteadyNow();
  const bool last = metrics.step + 1 == options_.learning_rate.steps;
  if (!last && now - last_progress_ < absl::Milliseconds(500)) return;
  last_progress_ = now;
  Say("step %d of %d: loss %.4f, grad_norm %.3f, lr %.3g, %.0f tokens/s", metrics.step, options_.learning_rate.steps,
      metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens_per_second);
}

absl::Status RunLog::FinishTrace() {
  if (options_.trace.empty()) return absl::OkStatus();
  if (events_ != nullptr) (void)MeasureHiddenShare();  // the last step's update
  const std::vector<TraceSpan> mine = events_ != nullptr ? std::exchange(spans_, {}) : trace_->Spans();
  // Collective, so every rank takes part, though only rank 0 needs the spans.
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::vector<TraceSpan>> ranks, GatherSpans(group_, mine));
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group_, is_rank0() ? trace_file_->Write(ranks) : absl::OkStatus()));
  if (is_rank0()) {
    Say("traced to %s%s", options_.trace, trace_->full() || left_out_ ? "; it has the beginning of the run only" : "");
  }
  return absl::OkStatus();
}

}  // namespace fsdp
