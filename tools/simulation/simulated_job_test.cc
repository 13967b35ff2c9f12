// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/simulated_job.h"

#include <fstream>
#include <limits>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

SimulatedJob Job(int ranks, int hosts) {
  SimulatedJob job;
  job.config = ReadModelConfig("llama-3.1-8b").value();
  job.work.seq_len = 4096;
  job.ranks = ranks;
  job.hosts = hosts;
  job.device = DevicePreset("h100", ComputePrecision::kBFloat16).value();
  job.links.local_bandwidth = job.device.local_bandwidth;
  job.links.host_bandwidth = 400e9;
  return job;
}

TEST(SimulatedJobTest, OneRankCommunicatesNothing) {
  ASSERT_OK_AND_ASSIGN(const SimulatedStep step, SimulateStep(Job(1, 1)));
  EXPECT_EQ(step.exposed_communication, 0);
  EXPECT_EQ(step.timeline.communication, 0);
}

TEST(SimulatedJobTest, ASlowerLinkExposesCommunicationAndLowersTheSpeed) {
  SimulatedJob slow = Job(128, 16);
  slow.links.host_bandwidth = 1e9;
  ASSERT_OK_AND_ASSIGN(const SimulatedStep of_slow, SimulateStep(slow));
  ASSERT_OK_AND_ASSIGN(const SimulatedStep of_fast, SimulateStep(Job(128, 16)));
  EXPECT_LT(of_fast.exposed_communication, 0.1);
  EXPECT_GT(of_slow.exposed_communication, 0.75);
  EXPECT_GT(of_fast.tokens_per_second, 3 * of_slow.tokens_per_second);
}

// All bytes of a step are known: two all-gathers of all blocks but one, of the root, and a reduction of everything.
TEST(SimulatedJobTest, AStepOfASlowLinkTakesTheTimeOfItsBytes) {
  SimulatedJob job = Job(2, 2);
  job.links.host_bandwidth = 1e8;
  ASSERT_OK_AND_ASSIGN(const SimulatedStep step, SimulateStep(job));
  const double block = 218112000, root = step.parameters - 32 * block;
  const double gathered = 2 * (32 + 31) * block + 2 * root, reduced = 4.0 * step.parameters;
  const double divided = 6.0 * step.parameters / job.device.memory_bandwidth;
  const double least = divided + (gathered + reduced) / 2 / job.links.host_bandwidth;
  EXPECT_GT(step.timeline.communication, least);
  EXPECT_LT(step.timeline.communication, 1.02 * least + 2 * block / 2 / job.links.host_bandwidth);
}

TEST(SimulatedJobTest, HybridShardingHidesTheLatencyOfManyHosts) {
  SimulatedJob hybrid = Job(16384, 2048);
  hybrid.work.seq_len = 8192;
  hybrid.work.checkpointing = Checkpointing::kFull;
  SimulatedJob flat = hybrid;
  hybrid.plan.strategy = ShardingStrategy::kHybridShard;
  ASSERT_OK_AND_ASSIGN(const SimulatedStep of_flat, SimulateStep(flat));
  ASSERT_OK_AND_ASSIGN(const SimulatedStep of_hybrid, SimulateStep(hybrid));
  EXPECT_GT(of_hybrid.tokens_per_second, 1.5 * of_flat.tokens_per_second);
  EXPECT_GT(of_hybrid.memory.fsdp, of_flat.memory.fsdp);
}

TEST(SimulatedJobTest, MoreRanksHoldLessEach) {
  ASSERT_OK_AND_ASSIGN(const SimulatedStep few, SimulateStep(Job(8, 1)));
  ASSERT_OK_AND_ASSIGN(const SimulatedStep many, SimulateStep(Job(128, 16)));
  EXPECT_EQ(few.memory.optimizer / 16, many.memory.optimizer);
  EXPECT_LT(many.memory.peak(), few.memory.peak());
  EXPECT_EQ(few.memory.activations, many.memory.activations);
}

TEST(SimulatedJobTest, CheckpointsTakeTheTimeOfTheirBytesOnAHostsDisk) {
  SimulatedJob job = Job(16, 2);
  job.disk_write = 1e9;
  job.disk_read = 4e9;
  ASSERT_OK_AND_ASSIGN(const SimulatedStep step, SimulateStep(job));
  EXPECT_DOUBLE_EQ(step.save_seconds, 12.0 * step.parameters / 2 / 1e9);
  EXPECT_DOUBLE_EQ(step.load_seconds, 12.0 * step.parameters / 2 / 4e9);
  // With a copy on each host, one host writes and each host reads all.
  job.plan.strategy = ShardingStrategy::kHybridShard;
  ASSERT_OK_AND_ASSIGN(const SimulatedStep hybrid, SimulateStep(job));
  EXPECT_DOUBLE_EQ(hybrid.save_seconds, 12.0 * step.parameters / 1e9);
  EXPECT_DOUBLE_EQ(hybrid.load_seconds, 12.0 * step.parameters / 4e9);
}

TEST(SimulatedJobTest, JobsThatCannotBeAreNamed) {
  const auto expect = [](const SimulatedJob& job, const char* message) {
    EXPECT_THAT(SimulateStep(job), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect(Job(0, 1), "ranks is 0");
  expect(Job(8, 3), "ranks is 8 and hosts 3, wanted at least 1 of each, and hosts that have equally many ranks");
  SimulatedJob job = Job(8, 1);
  job.micro_steps = 0;
  expect(job, "grad_accum is 0");
  job = Job(8, 1);
  job.shard_group_size = 4;
  expect(job, "shard_group_size is 4, wanted a hybrid strategy with it, not full_shard");
  job = Job(16, 2);
  job.plan.strategy = ShardingStrategy::kHybridShard;
  job.shard_group_size = 3;
  expect(job, "shard_group_size is 3, wanted a divisor of 16 ranks");
  job = Job(8, 1);
  job.device.achievable = 1.5;
  expect(job, "achievable is 1.5");
  job = Job(8, 1);
  job.links.host_bandwidth = 0;
  expect(job, "host_bandwidth is 0");
}

TEST(SimulatedJobTest, SizesThatOverflowAreRefused) {
  const auto expect = [](const SimulatedJob& job, const char* message) {
    EXPECT_THAT(SimulateStep(job), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  SimulatedJob job = Job(8, 1);
  job.work.batch_size = kMost;
  expect(job, "batch_size is 9223372036854775807 and seq_len 4096, wanted activations of at most 1e+18 bytes");
  job = Job(8, 1);
  job.work.seq_len = kMost;
  expect(job, "seq_len 9223372036854775807, wanted activations");
  expect(Job(std::numeric_limits<int>::max(), 1), "ranks is 2147483647, wanted at most 1048576");
  job = Job(8, 1);
  auto& config = std::get<LlamaConfig>(job.config);
  config.vocab_size = int64_t{1} << 30;
  config.hidden_size = config.intermediate_size = int64_t{1} << 25;
  expect(job, "parameters, padded for 8 ranks, wanted at most 1e+17");
  job = Job(1, 1);
  job.device.bfloat16_flops = job.device.attention_flops = job.device.memory_bandwidth =
      std::numeric_limits<double>::infinity();
  expect(job, "the step takes 0 s, wanted speeds");
}

// A schedule of a million micro-steps would take minutes and gigabytes.
TEST(SimulatedJobTest, AStepThatTakesLongToSimulateIsRefused) {
  SimulatedJob job = Job(8, 1);
  job.micro_steps = 1'000'000;
  EXPECT_THAT(SimulateStep(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("grad_accum is 1000000, wanted at most 31775 for a model of 33 units")));
}

TEST(SimulatedJobTest, AConfigIsAPresetOrAFile) {
  EXPECT_THAT(ReadModelConfig("llama-9"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"llama-9\" is no file; no GPT-2 preset")));
  const std::string path = testing::TempDir() + "/config.json";
  std::ofstream(path) << "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 24, \"n_head\": 2}";
  ASSERT_OK_AND_ASSIGN(const CausalLmConfig config, ReadModelConfig(path));
  EXPECT_EQ(std::get<Gpt2Config>(config).n_layer, 3);
  std::ofstream(path) << "{}";
  EXPECT_THAT(ReadModelConfig(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model_type")));
}

}  // namespace
}  // namespace fsdp
