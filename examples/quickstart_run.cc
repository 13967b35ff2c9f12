// SPDX-License-Identifier: Apache-2.0
//
// The story in six commands: train on 4 ranks; kill all processes with SIGKILL between two checkpoints; run the same
// command on 3 ranks, which must find the checkpoint by itself and lose only the steps after it; verify; convert; draw.
// Each step checks what it claims, so the quickstart is a test of the installation too.
#include "fsdp/examples/quickstart_run.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/train/metrics.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 240;
constexpr int64_t kCheckpointEvery = 120;
constexpr int64_t kKillAfterStep = 150;  // between two checkpoints, so that steps are lost and trained again
// A model that does not learn stays near 1; the margin covers other processors' rounding.
constexpr double kLargestLossRatio = 0.6;
constexpr absl::Duration kCommandTimeout = absl::Minutes(10);

template <typename... Args>
void Say(const absl::FormatSpec<Args...>& format, const Args&... args) {
  absl::PrintF(format, args...);
  std::putchar('\n');
  std::fflush(stdout);
}

// "bazel-bin/tools/ckpt", as a person types it in the repository, if that is the same file; otherwise the whole path.
std::string TypedName(const std::string& program) {
  const fs::path path(program);
  const fs::path typed = fs::path("bazel-bin") / path.parent_path().filename() / path.filename();
  std::error_code error;
  // The same file, not the same name: in runfiles the program has another path.
  return fs::equivalent(typed, path, error) ? typed.string() : program;
}

// Prints a command as a person would type it.
void SayCommand(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  words[0] = TypedName(command[0]);
  Say("   $ %s", absl::StrJoin(words, " "));
}

absl::Status Failed(const std::vector<std::string>& command, int exit_status, const std::string& output) {
  return absl::InternalError(
      absl::StrFormat("%s exited with status %d and printed:\n%s", absl::StrJoin(command, " "), exit_status, output));
}

// "[########--------] step 120 of 240, loss 2.613, 1834 tokens/s, 12s left".
std::string ProgressLine(const StepMetrics& metrics, int64_t steps) {
  constexpr int64_t kColumns = 16;  // the line then fits a terminal of 80
  const int64_t done = metrics.step + 1;
  const int64_t filled = steps > 0 ? kColumns * done / steps : 0;
  const absl::Duration left = absl::Seconds(metrics.step_seconds) * (steps - done);
  return absl::StrFormat("[%s%s] step %d of %d, loss %.3f, %.0f tokens/s, %s left", std::string(filled, '#'),
                         std::string(kColumns - filled, '-'), done, steps, metrics.loss, metrics.tokens_per_second,
                         absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))));
}

// How far the training is, on stdout: a line that is redrawn on a terminal, a new line every five seconds elsewhere.
class StepProgress {
 public:
  explicit StepProgress(int64_t steps);

  // Ends the line that is being redrawn.
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  // Shows the step that was done last, unless one was shown a moment ago.
  void Update(const StepMetrics& metrics);

 private:
  const int64_t steps_;
  const bool is_terminal_;
  absl::Time shown_ = absl::InfinitePast();
  bool line_open_ = false;
};

StepProgress::StepProgress(int64_t steps) : steps_(steps), is_terminal_(isatty(STDOUT_FILENO) == 1) {}

StepProgress::~StepProgress() {
  if (line_open_) std::printf("\n");
}

void StepProgress::Update(const StepMetrics& metrics) {
  const absl::Time now = SteadyNow();
  // A log must not fill up with lines, a terminal must look alive.
  if (now - shown_ < (is_terminal_ ? absl::Milliseconds(100) : absl::Seconds(5))) return;
  shown_ = now;
  const std::string line = ProgressLine(metrics, steps_);
  std::printf(is_terminal_ ? "\r\033[K   %s" : "   %s\n", line.c_str());
  std::fflush(stdout);
  line_open_ = is_terminal_;
}

// Blocks until no process has `text` in its command line.
absl::Status ExpectNoProcess(const std::string& text) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(10);
  std::vector<pid_t> left = ProcessesWith(text);
  while (!left.empty() && SteadyNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
    left = ProcessesWith(text);
  }
  if (left.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("processes %s outlived the run that was killed", absl::StrJoin(left, ", ")));
}

}  // namespace

QuickstartRun::QuickstartRun(std::string output_dir, std::string train_gpt, std::string ckpt, std::string report)
    : output_dir_(std::move(output_dir)),
      train_gpt_(std::move(train_gpt)),
      ckpt_(std::move(ckpt)),
      report_(std::move(report)),
      checkpoint_dir_(output_dir_ + "/checkpoints"),
      metrics_(output_dir_ + "/metrics.jsonl"),
      events_(output_dir_ + "/tensorboard"),
      model_(output_dir_ + "/model.safetensors"),
      page_(output_dir_ + "/report.html") {}

absl::StatusOr<QuickstartRun> QuickstartRun::Create(const std::string& output_dir) {
  FSDP_ASSIGN_OR_RETURN(std::string train_gpt, FindRunfile("train/train_gpt"));
  FSDP_ASSIGN_OR_RETURN(std::string ckpt, FindRunfile("tools/ckpt"));
  FSDP_ASSIGN_OR_RETURN(std::string report, FindRunfile("tools/report"));
  return QuickstartRun(output_dir, std::move(train_gpt), std::move(ckpt), std::move(report));
}

absl::Status QuickstartRun::Run() {
  Say("A small GPT-2 learns this repository's own sources. Everything is left in\n   %s\n", output_dir_);
  FSDP_RETURN_IF_ERROR(TrainAndKill());
  FSDP_RETURN_IF_ERROR(Continue());
  FSDP_RETURN_IF_ERROR(Verify());
  FSDP_RETURN_IF_ERROR(Convert());
  FSDP_RETURN_IF_ERROR(Report());
  return Summarise();
}

std::vector<std::string> QuickstartRun::TrainCommand(int nproc) const {
  // The same for both runs except --nproc: a user types the same command again.
  return {train_gpt_, absl::StrCat("--nproc=", nproc), "--config=gpt2-tiny", "--param_dtype=bfloat16",
          absl::StrCat("--steps=", kSteps), "--batch_size=4", "--seq_len=64", "--lr=3e-3", "--min_lr=3e-4",
          "--warmup_steps=10",
          // A file per rank, so that the second run, on fewer ranks, must reshard.
          "--state_dict_type=sharded", absl::StrCat("--checkpoint_every=", kCheckpointEvery),
          absl::StrCat("--checkpoint_dir=", checkpoint_dir_), absl::StrCat("--metrics=", metrics_),
          absl::StrCat("--tensorboard=", events_)};
}

std::string QuickstartRun::CheckpointPath(int64_t step) const {
  return absl::StrFormat("%s/step-%08d", checkpoint_dir_, step);
}

// The metrics file is the only thing that is watched: train_gpt writes a line as soon as a step is done. On resume it
// appends, so the lines of the first run must not count as progress of the second.
absl::StatusOr<int> QuickstartRun::WatchUntilStep(ChildProcess& child, int64_t step) {
  StepProgress progress(kSteps);
  const size_t lines_before = ReadMetrics(metrics_).value_or(std::vector<StepMetrics>()).size();  // of an earlier run
  const absl::Time deadline = SteadyNow() + kCommandTimeout;
  while (SteadyNow() < deadline) {
    const std::optional<int> exit_status = child.Poll(absl::Milliseconds(20));
    // Before the metrics are read: a run that has ended writes no more of them.
    if (exit_status.has_value()) return *exit_status;
    const absl::StatusOr<std::vector<StepMetrics>> steps = ReadMetrics(metrics_);
    if (!steps.ok() || steps->size() <= lines_before) continue;
    progress.Update(steps->back());
    if (steps->back().step >= step) return 0;
  }
  return absl::DeadlineExceededError(absl::StrFormat("step %d has not come within %s; the run printed:\n%s", step,
                                                     absl::FormatDuration(kCommandTimeout), child.output()));
}

absl::Status QuickstartRun::TrainAndKill() {
  Say("1. Train on 4 ranks with parameters in bfloat16; save a sharded checkpoint every %d steps.", kCheckpointEvery);
  const std::vector<std::string> command = TrainCommand(4);
  SayCommand(command);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start(command));
  FSDP_ASSIGN_OR_RETURN(const int exit_status, WatchUntilStep(*child, kKillAfterStep));
  // An exit by now means that the run ended before anything could kill it.
  if (child->Poll(absl::ZeroDuration()).has_value()) return Failed(command, exit_status, child->output());
  // The launcher and its ranks all have this flag in their command lines; no other process has it.
  const std::string own_flag = absl::StrCat("--checkpoint_dir=", checkpoint_dir_);
  const std::vector<pid_t> processes = ProcessesWith(own_flag);
  SayCommand({"kill", "-9", absl::StrJoin(processes, " ")});
  // SIGKILL to all of them: no process may get a chance to save on its way out.
  for (const pid_t pid : processes) kill(pid, SIGKILL);
  FSDP_ASSIGN_OR_RETURN(const int killed_status, child->Wait(absl::Seconds(10)));
  if (killed_status != 128 + SIGKILL) return Failed(command, killed_status, child->output());
  FSDP_RETURN_IF_ERROR(ExpectNoProcess(own_flag));
  FSDP_ASSIGN_OR_RETURN(const std::vector<StepMetrics> steps, ReadMetrics(metrics_));
  Say("   The launcher and its ranks are dead at step %d; no process is left.\n", steps.back().step + 1);
  return absl::OkStatus();
}

absl::Status QuickstartRun::Continue() {
  Say("2. Continue on 3 ranks: the same command, which finds the newest checkpoint that verifies.");
  const std::vector<std::string> command = TrainCommand(3);
  SayCommand(command);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start(command));
  FSDP_ASSIGN_OR_RETURN(int exit_status, WatchUntilStep(*child, kSteps));
  if (exit_status != 0) return Failed(command, exit_status, child->output());
  // Step 120, not 150: the steps after the checkpoint were lost with the processes.
  const std::string resumed = absl::StrCat("resuming from ", CheckpointPath(kCheckpointEvery));
  if (!absl::StrContains(child->output(), resumed)) return Failed(command, exit_status, child->output());
  Say("   It printed \"%s\" and reached step %d.\n", resumed, kSteps);
  return absl::OkStatus();
}

absl::Status QuickstartRun::RunCommand(const std::vector<std::string>& command) {
  SayCommand(command);
  FSDP_ASSIGN_OR_RETURN(const ProgramResult result, RunProgram(command, kCommandTimeout));
  if (result.exit_status != 0) return Failed(command, result.exit_status, result.output);
  std::printf("%s\n", result.output.c_str());
  return absl::OkStatus();
}

absl::Status QuickstartRun::Verify() {
  Say("3. Verify both checkpoints, the one of 4 ranks and the one of 3: every digest of every byte.");
  FSDP_RETURN_IF_ERROR(RunCommand({ckpt_, "verify", CheckpointPath(kCheckpointEvery)}));
  return RunCommand({ckpt_, "verify", CheckpointPath(kSteps)});
}

absl::Status QuickstartRun::Convert() {
  Say("4. Convert the last one, whose tensors are in 3 files, to one safetensors file.");
  FSDP_RETURN_IF_ERROR(RunCommand({ckpt_, "convert", CheckpointPath(kSteps), model_}));
  FSDP_RETURN_IF_ERROR(RunCommand({ckpt_, "diff", CheckpointPath(kSteps), model_, "--model_only"}));
  Say("   Read back and compared: every value of every tensor is equal.\n");
  return absl::OkStatus();
}

absl::Status QuickstartRun::Report() {
  Say("5. Draw both runs as one page: loss, speed, memory, checkpoints, the restart.");
  return RunCommand({report_, metrics_, absl::StrCat("--html=", page_)});
}

absl::Status QuickstartRun::Summarise() {
  FSDP_ASSIGN_OR_RETURN(const std::vector<StepMetrics> steps, ReadMetrics(metrics_));
  const double ratio = steps.back().loss / steps.front().loss;
  Say("Done. The loss fell from %.3f to %.3f, %.0f %% of its first value.", steps.front().loss, steps.back().loss,
      100 * ratio);
  Say("   %s: every step of both runs", metrics_);
  Say("   %s: both runs as a page, for any browser", page_);
  Say("   %s: both runs for TensorBoard", events_);
  Say("   %s: saved by 4 ranks; verified", CheckpointPath(kCheckpointEvery));
  Say("   %s: saved by 3 ranks; verified", CheckpointPath(kSteps));
  Say("   %s: the model; equal to the checkpoint", model_);
  Say("Opened with HDF5, a sharded checkpoint is one file of whole tensors:");
  Say("   $ python3 -c 'import h5py; print(h5py.File(\"%s/checkpoint.h5\")[\"model/transformer.wte.weight\"])'",
      CheckpointPath(kSteps));
  if (steps.back().step + 1 == kSteps && ratio < kLargestLossRatio) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("the loss of step %d is %.3f of the first, expected step %d and less than %.1f",
                      steps.back().step, ratio, kSteps - 1, kLargestLossRatio));
}

}  // namespace fsdp
