// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/fitting_job.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

SimulatedJob Job(const std::string& config, int ranks) {
  SimulatedJob job;
  job.config = ReadModelConfig(config).value();
  job.work.seq_len = 8192;
  job.ranks = ranks;
  job.device = DevicePreset("h100", ComputePrecision::kBFloat16).value();
  job.links.local_bandwidth = job.device.local_bandwidth;
  job.links.host_bandwidth = 400e9;
  return job;
}

std::vector<std::string> FlagsOf(const std::vector<FittingJob>& jobs) {
  std::vector<std::string> flags;
  for (const FittingJob& job : jobs) flags.push_back(job.flags);
  return flags;
}

TEST(FittingJobTest, AJobFitsIfItsPeakIsAtMostTheDevicesMemory) {
  SimulatedJob job = Job("llama-3.1-8b", 64);
  ASSERT_OK_AND_ASSIGN(const SimulatedStep step, SimulateStep(job));
  job.device.memory_bytes = step.memory.peak();
  EXPECT_TRUE(Fits(job, step));
  job.device.memory_bytes -= 1;
  EXPECT_FALSE(Fits(job, step));
  job.device.memory_bytes = 0;
  EXPECT_TRUE(Fits(job, step)) << "the memory is not known";
}

TEST(FittingJobTest, EachKindOfChangeIsTriedByItself) {
  SimulatedJob job = Job("llama-3.1-8b", 8);
  job.work.batch_size = 4;
  job.plan.strategy = ShardingStrategy::kShardGradOp;
  job.device.memory_bytes = 150'000'000'000;
  const std::vector<FittingJob> jobs = JobsThatFit(job);
  EXPECT_THAT(FlagsOf(jobs), ElementsAre(StartsWith("--activation_checkpointing="), StartsWith("--batch_size=")));
  for (const FittingJob& fitting : jobs) {
    EXPECT_LE(fitting.peak_bytes, job.device.memory_bytes);
    EXPECT_GT(fitting.tokens_per_second, 0);
  }
}

TEST(FittingJobTest, MoreRanksHelpAModelThatIsLargeItself) {
  SimulatedJob job = Job("llama-3.1-70b", 8);
  job.work.checkpointing = Checkpointing::kFull;
  EXPECT_THAT(FlagsOf(JobsThatFit(job)), ElementsAre("--ranks=64 --hosts=8"));
}

TEST(FittingJobTest, IfNoSingleChangeIsEnoughAllAreTriedTogether) {
  SimulatedJob job = Job("llama-3.1-405b", 8);
  job.device = DevicePreset("h200", ComputePrecision::kBFloat16).value();
  job.work.batch_size = 64;
  const std::vector<std::string> flags = FlagsOf(JobsThatFit(job));
  ASSERT_EQ(flags.size(), 1u);
  EXPECT_THAT(flags[0], StartsWith("--activation_checkpointing=full --batch_size=1 --ranks="));
}

TEST(FittingJobTest, NothingHelpsWhereNothingDoes) {
  SimulatedJob job = Job("llama-3.1-405b", 8);
  job.device.memory_bytes = 1'000'000;
  EXPECT_THAT(JobsThatFit(job), ElementsAre());
}

}  // namespace
}  // namespace fsdp
