// SPDX-License-Identifier: Apache-2.0
//
// Which collectives a step issues, and how many, per strategy: the numbers of PyTorch's test_fsdp_comm.py and
// test_fsdp_hybrid_shard.py. The model has three units: the root and two blocks.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Log = RecordingProcessGroup::Log;

constexpr int kUnits = 3;

struct Counts {
  int all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  bool operator==(const Counts& other) const {
    return all_gathers == other.all_gathers && reduce_scatters == other.reduce_scatters &&
           all_reduces == other.all_reduces;
  }
};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.all_gathers << " all-gathers, " << counts.reduce_scatters << " reduce-scatters, "
             << counts.all_reduces << " all-reduces";
}

Counts TakeCounts(Log& log) {
  const Counts counts{CountEntries(log, "all_gather"), CountEntries(log, "reduce_scatter"),
                      CountEntries(log, "all_reduce")};
  log.clear();
  return counts;
}

// The collectives of an ordinary step, of a step under no_sync, and of the step after that.
struct StepCounts {
  Counts synced, unsynced, after_unsynced;
};

absl::Status ExpectCounts(TestModel& made, Log& log, const StepCounts& expected) {
  log.clear();
  for (int step = 0; step < 2; ++step) {
    FSDP_RETURN_IF_ERROR(made.Train(step));
    EXPECT_EQ(TakeCounts(log), expected.synced) << "step " << step;
  }
  for (int round = 0; round < 2; ++round) {
    {
      NoSyncGuard guard(*made.model);
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(2).status());
    }
    EXPECT_EQ(TakeCounts(log), expected.unsynced) << "round " << round;
    FSDP_RETURN_IF_ERROR(made.Train(3));
    EXPECT_EQ(TakeCounts(log), expected.after_unsynced) << "round " << round;
  }
  return absl::OkStatus();
}

absl::Status ExpectCounts(int world_size, ShardingStrategy strategy, const StepCounts& expected) {
  return RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto log = std::make_shared<Log>();
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = strategy;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    return ExpectCounts(made, *log, expected);
  });
}

TEST(CollectiveCountsTest, FullShardGathersAllInForwardAndAllButTheRootInBackward) {
  const Counts synced{2 * kUnits - 1, kUnits, 0};
  const Counts unsynced{2 * kUnits - 1, 0, 0};
  EXPECT_OK(ExpectCounts(3, ShardingStrategy::kFullShard, {synced, unsynced, synced}));
}

TEST(CollectiveCountsTest, ShardGradOpKeepsParametersUntilASyncedBackward) {
  const Counts synced{kUnits, kUnits, 0};
  EXPECT_OK(ExpectCounts(3, ShardingStrategy::kShardGradOp, {synced, {kUnits, 0, 0}, {0, kUnits, 0}}));
}

TEST(CollectiveCountsTest, NoShardOnlyReduces) {
  const Counts synced{0, 0, kUnits};
  EXPECT_OK(ExpectCounts(3, ShardingStrategy::kNoShard, {synced, {0, 0, 0}, synced}));
}

TEST(CollectiveCountsTest, OneRankIsNoShardWhateverWasAsked) {
  const Counts synced{0, 0, kUnits};
  EXPECT_OK(ExpectCounts(1, ShardingStrategy::kFullShard, {synced, {0, 0, 0}, synced}));
  EXPECT_OK(ExpectCounts(1, ShardingStrategy::kShardGradOp, {synced, {0, 0, 0}, synced}));
}

// Rank groups of a 2 x 2 mesh that write to one log, as "shard" and "replicate".
absl::StatusOr<std::pair<std::shared_ptr<ProcessGroup>, std::shared_ptr<ProcessGroup>>> RecordedPair(
    std::shared_ptr<ProcessGroup> world, const std::shared_ptr<Log>& log) {
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(std::move(world), {2, 2}, {"replicate", "shard"}));
  return std::pair<std::shared_ptr<ProcessGroup>, std::shared_ptr<ProcessGroup>>(
      std::make_shared<RecordingProcessGroup>(mesh->group(1), "shard", log),
      std::make_shared<RecordingProcessGroup>(mesh->group(0), "replicate", log));
}

absl::Status ExpectHybridCounts(ShardingStrategy strategy, const StepCounts& expected) {
  return RunRanks(4, [&](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    auto log = std::make_shared<Log>();
    FSDP_ASSIGN_OR_RETURN(auto pair, RecordedPair(world, log));
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = strategy;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(pair, options));
    FSDP_RETURN_IF_ERROR(ExpectCounts(made, *log, expected));
    FSDP_RETURN_IF_ERROR(made.Train(4));
    // Gathers and scatters stay in the shard group, sums of shards go over the replicas.
    for (const std::string& entry : *log) {
      const bool all_reduce = entry.rfind("all_reduce", 0) == 0;
      EXPECT_THAT(entry, testing::HasSubstr(all_reduce ? "replicate" : "shard"));
    }
    return absl::OkStatus();
  });
}

TEST(CollectiveCountsTest, HybridShardAddsAnAllReduceAUnit) {
  const Counts synced{2 * kUnits - 1, kUnits, kUnits};
  EXPECT_OK(ExpectHybridCounts(ShardingStrategy::kHybridShard, {synced, {2 * kUnits - 1, 0, 0}, synced}));
}

TEST(CollectiveCountsTest, HybridShardZero2KeepsParametersUntilASyncedBackward) {
  const Counts synced{kUnits, kUnits, kUnits};
  EXPECT_OK(ExpectHybridCounts(ShardingStrategy::kHybridShardZero2, {synced, {kUnits, 0, 0}, {0, kUnits, kUnits}}));
}

// PyTorch's test_fsdp_hybrid_shard.py: all-reduces count only the hybrid units.
TEST(CollectiveCountsTest, HybridAndFullyShardedUnitsMixInOneTree) {
  EXPECT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    auto log = std::make_shared<Log>();
    auto group = std::make_shared<RecordingProcessGroup>(world, "world", log);
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.shard_group_size = 2;
    int blocks = 0;
    options.auto_wrap_policy = CustomWrapPolicy([&blocks](Module& module) -> std::optional<UnitOverrides> {
      if (dynamic_cast<Gpt2Block*>(&module) == nullptr) return std::nullopt;
      if (blocks++ > 0) return UnitOverrides();
      return UnitOverrides{.sharding_strategy = ShardingStrategy::kFullShard};
    });
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    log->clear();
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(CountEntries(*log, "all_reduce world/2"), kUnits - 1);
    EXPECT_EQ(CountEntries(*log, "reduce_scatter world/2"), kUnits - 1);
    EXPECT_EQ(CountEntries(*log, "reduce_scatter world "), 1);
    EXPECT_EQ(CountEntries(*log, "all_gather world "), 2);
    return absl::OkStatus();
  }));
}

TEST(CollectiveCountsTest, EvaluationGathersEveryUnitOnce) {
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto log = std::make_shared<Log>();
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    log->clear();
    Tape tape = made.model->NewTape(/*training=*/false);
    FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(made.model->device(), DType::kInt32, {1, 3}));
    for (int i = 0; i < 3; ++i) tokens.data_as<int32_t>()[i] = i;
    FSDP_RETURN_IF_ERROR(made.model->Forward(tokens, tape).status());
    EXPECT_EQ(TakeCounts(*log), (Counts{kUnits, 0, 0}));
    return made.model->stream().Synchronize();
  }));
}

}  // namespace
}  // namespace fsdp
