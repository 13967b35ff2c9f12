// SPDX-License-Identifier: Apache-2.0
//
// Processes are found through /proc: by their command lines, which contain a path that no other test has, and by RANK
// in the environment that they were started with. Waiting means polling files and /proc with a deadline, since the
// processes under test must not know that they are watched.
#include "fsdp/tests/train_gpt_run.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/train/metrics.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(2);

// The value of a variable in the environment that a process was started with. The file separates variables by zero
// bytes; with one more at the front, a search cannot find a name that is only the end of another one.
std::string VariableOf(pid_t pid, const std::string& name) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string environment = std::string(1, '\0') + std::string(std::istreambuf_iterator<char>(stream), {});
  const std::string key = std::string(1, '\0') + name + "=";
  const size_t at = environment.find(key);
  return at == std::string::npos ? "" : environment.c_str() + at + key.size();
}

ChildOptions TrainingOptions() {
  ChildOptions options;
  options.unset = {"RANK", "WORLD_SIZE", "BUILD_WORKING_DIRECTORY"};
  return options;
}

}  // namespace

// RanksOf and Survivors find the processes of a run by this path in their command lines. Canonical, since programs
// print resolved paths.
std::string NewDirectory() {
  std::string path = testing::TempDir() + "/run-XXXXXX";
  return std::filesystem::canonical(mkdtemp(path.data()));
}

std::string Golden(const std::string& name) {
  const absl::StatusOr<std::string> tokens = FindRunfile("tests/testdata/golden/tokens.u16");
  const std::string root = tokens.ok() ? tokens->substr(0, tokens->rfind('/') + 1) : "missing runfiles/";
  return root + name;
}

// Two ranks and a warm-up of more than one step, so that a resume that forgets the step count is noticed.
Flags SmallRun() {
  return {"--nproc=2",
          "--batch_size=1",
          "--seq_len=16",
          "--warmup_steps=3",
          "--lr=3e-3",
          "--seed=7",
          "--config=" + Golden("gpt2_tiny/config.json"),
          "--tokens=" + Golden("tokens.u16")};
}

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A test may itself run under a launcher or `bazel run`: their variables would make train_gpt join that job.
absl::StatusOr<std::unique_ptr<ChildProcess>> StartTraining(const Flags& flags) {
  FSDP_ASSIGN_OR_RETURN(const std::string program, FindRunfile("train/train_gpt"));
  return ChildProcess::Start(Flags{program} + flags, TrainingOptions());
}

absl::StatusOr<ProgramResult> Train(const Flags& flags) {
  FSDP_ASSIGN_OR_RETURN(const std::string program, FindRunfile("train/train_gpt"));
  return RunProgram(Flags{program} + flags, absl::Minutes(2), TrainingOptions());
}

// A resumed run appends to the same file, so a repeated step has two lines. Most tests are about equal losses of both,
// so a difference is an error here, for all of them.
absl::StatusOr<std::map<int64_t, StepMetrics>> MetricsByStep(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<StepMetrics> lines, ReadMetrics(path));
  std::map<int64_t, StepMetrics> by_step;
  for (const StepMetrics& line : lines) {
    const auto [known, is_new] = by_step.emplace(line.step, line);
    if (is_new || known->second.loss == line.loss) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: step %d has the losses %.17g and %.17g", path, line.step, known->second.loss, line.loss));
  }
  return by_step;
}

absl::Status WaitForStep(const std::string& path, int64_t step) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    // The file does not exist before the first step, and its last line may be incomplete.
    const absl::StatusOr<std::vector<StepMetrics>> lines = ReadMetrics(path);
    if (lines.ok() && !lines->empty() && lines->back().step >= step) return absl::OkStatus();
    absl::SleepFor(kTick);
  }
  return absl::DeadlineExceededError(absl::StrFormat("%s: step %d has not come within 60 s", path, step));
}

std::map<int, pid_t> RanksOf(const std::string& text, const std::string& variable) {
  std::map<int, pid_t> ranks;
  for (const pid_t pid : ProcessesWith(text)) {
    int rank = 0;
    if (absl::SimpleAtoi(VariableOf(pid, variable), &rank)) ranks[rank] = pid;
  }
  return ranks;
}

// Processes of a run that ended may need a moment to go, so only those that outlast a deadline count.
std::vector<pid_t> Survivors(const std::string& text) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  std::vector<pid_t> left = ProcessesWith(text);
  while (!left.empty() && absl::Now() < deadline) {
    absl::SleepFor(kTick);
    left = ProcessesWith(text);
  }
  return left;
}

}  // namespace fsdp
