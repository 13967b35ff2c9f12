// SPDX-License-Identifier: Apache-2.0
//
// Runs of //train:train_gpt as child processes, on a small model and the golden tokens: the helpers that the
// tests of whole programs share.
#ifndef FSDP_TESTS_TRAIN_GPT_RUN_H_
#define FSDP_TESTS_TRAIN_GPT_RUN_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/child_process.h"
#include "fsdp/train/metrics.h"

namespace fsdp {

using Flags = std::vector<std::string>;

// A new empty directory, whose name no other test has.
std::string NewDirectory();

// A file of testdata/golden/, by its path there.
std::string Golden(const std::string& name);

// Two ranks and the smallest golden model on the golden tokens: the run that most tests use.
Flags SmallRun();

Flags operator+(Flags a, const Flags& b);

// train_gpt with `flags`, outside any job that this process may be in.
absl::StatusOr<std::unique_ptr<ChildProcess>> StartTraining(const Flags& flags);

// The same, to its end; an error when that takes more than two minutes.
absl::StatusOr<ProgramResult> Train(const Flags& flags);

// The metrics of a run, by step; kFailedPrecondition if a repeated step has two different losses.
absl::StatusOr<std::map<int64_t, StepMetrics>> MetricsByStep(const std::string& path);

// Blocks until `path` has the metrics of step `step`, or 60 s are over.
absl::Status WaitForStep(const std::string& path, int64_t step);

// The processes that are ranks of the run whose command line contains `text`, by RANK, or by another variable in which
// their launcher sets it.
std::map<int, pid_t> RanksOf(const std::string& text, const std::string& variable = "RANK");

// Blocks until no process has `text` in its command line, or 10 s are over; returns the processes that are left.
std::vector<pid_t> Survivors(const std::string& text);

}  // namespace fsdp

#endif  // FSDP_TESTS_TRAIN_GPT_RUN_H_
