// SPDX-License-Identifier: Apache-2.0
//
// For tests of train_gpt runs that stop and continue: a run in a directory of its own, and the metrics of an
// undisturbed run.
#ifndef FSDP_TESTS_RESUME_RUN_H_
#define FSDP_TESTS_RESUME_RUN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {

// One run and the files that it leaves, in a directory of its own.
class ResumeRun : public testing::Test {
 protected:
  Flags Run(int64_t steps, int64_t every) const {
    return SmallRun() + Flags{absl::StrCat("--steps=", steps), absl::StrCat("--checkpoint_every=", every),
                              "--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  }

  // Runs to the end and expects exit status 0. Returns the printed text.
  std::string TrainWell(const Flags& flags) {
    const absl::StatusOr<ProgramResult> run = Train(flags);
    EXPECT_OK(run);
    if (!run.ok()) return "";
    EXPECT_EQ(run->exit_status, 0) << run->output;
    return run->output;
  }

  std::vector<std::string> Checkpoints() const {
    return ListCheckpoints(checkpoint_dir_).value_or(std::vector<std::string>());
  }

  const std::string directory_ = NewDirectory();
  const std::string checkpoint_dir_ = directory_ + "/checkpoints";
  const std::string metrics_ = directory_ + "/metrics.jsonl";
};

// The metrics that the same run has when nothing stops it.
inline std::map<int64_t, StepMetrics> Uninterrupted(const Flags& flags) {
  const std::string metrics = NewDirectory() + "/metrics.jsonl";
  const absl::StatusOr<ProgramResult> run = Train(flags + Flags{"--metrics=" + metrics});
  EXPECT_OK(run);
  if (!run.ok()) return {};
  EXPECT_EQ(run->exit_status, 0) << run->output;
  return MetricsByStep(metrics).value_or(std::map<int64_t, StepMetrics>());
}

inline void ExpectSameBits(const std::string& metrics, const std::map<int64_t, StepMetrics>& expected) {
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics));  // fails if a repeated step differs
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [step, wanted] : expected) {
    EXPECT_EQ(actual.at(step).loss, wanted.loss) << "step " << step;
    EXPECT_EQ(actual.at(step).grad_norm, wanted.grad_norm) << "step " << step;
    EXPECT_EQ(actual.at(step).lr, wanted.lr) << "step " << step;
  }
}

// Every name step-* is a complete checkpoint.
inline void ExpectAllVerify(const std::string& checkpoint_dir) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, ListCheckpoints(checkpoint_dir));
  for (const std::string& step : steps) {
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(checkpoint_dir + "/" + step));
    EXPECT_THAT(report.problems, testing::IsEmpty()) << step;
  }
}

}  // namespace fsdp

#endif  // FSDP_TESTS_RESUME_RUN_H_
