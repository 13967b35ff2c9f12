// SPDX-License-Identifier: Apache-2.0
//
// The collectives of FullyShard, counted: three units (root and two blocks) on ranks that divide no size.
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/nn/embedding.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

constexpr int kRanks = 3;
constexpr int kUnits = 3;

struct Counts {
  int forward_all_gathers = 0;
  int backward_all_gathers = 0;
  int reduce_scatters = 0;
  int all_reduces = 0;
};

// The counts of the second step, whose order is known.
absl::StatusOr<Counts> CountStep(TestFullyShard& test) {
  FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
  test.log->clear();
  FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
  FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
  Counts counts;
  counts.forward_all_gathers = test.Count("all_gather");
  FSDP_RETURN_IF_ERROR(test.Backward(y, tape));
  counts.backward_all_gathers = test.Count("all_gather") - counts.forward_all_gathers;
  counts.reduce_scatters = test.Count("reduce_scatter");
  counts.all_reduces = test.Count("all_reduce");
  return counts;
}

void ExpectCounts(int ranks, const FullyShardOptions& options, const Counts& wanted, int replicas = 1,
                  const std::function<absl::Status(TestFullyShard&)>& set = nullptr) {
  ASSERT_OK(RunFullyShard(
      ranks, options,
      [&](TestFullyShard& test) -> absl::Status {
        if (set != nullptr) FSDP_RETURN_IF_ERROR(set(test));
        FSDP_ASSIGN_OR_RETURN(const Counts counts, CountStep(test));
        EXPECT_EQ(counts.forward_all_gathers, wanted.forward_all_gathers);
        EXPECT_EQ(counts.backward_all_gathers, wanted.backward_all_gathers);
        EXPECT_EQ(counts.reduce_scatters, wanted.reduce_scatters);
        EXPECT_EQ(counts.all_reduces, wanted.all_reduces);
        return absl::OkStatus();
      },
      replicas));
}

TEST(FullyShardCountsTest, ByDefaultTheRootIsKeptForBackward) {
  ExpectCounts(kRanks, {}, {kUnits, kUnits - 1, kUnits, 0});
}

TEST(FullyShardCountsTest, ReshardAfterForwardGathersEveryUnitTwice) {
  ExpectCounts(kRanks, {.reshard_after_forward = true}, {kUnits, kUnits, kUnits, 0});
}

TEST(FullyShardCountsTest, WithoutReshardAfterForwardEveryUnitIsGatheredOnce) {
  ExpectCounts(kRanks, {.reshard_after_forward = false}, {kUnits, 0, kUnits, 0});
}

TEST(FullyShardCountsTest, ReshardingToGroupsGathersOverThemInBackward) {
  ASSERT_OK(RunFullyShard(4, {.reshard_after_forward = 2}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Counts counts, CountStep(test));
    EXPECT_EQ(counts.reduce_scatters, kUnits);
    EXPECT_EQ(test.Count("all_gather world "), kUnits);
    EXPECT_EQ(test.Count("all_gather world/2 "), kUnits);
    return absl::OkStatus();
  }));
}

TEST(FullyShardCountsTest, GroupsOfOneAreNoReshardAndOfAllARealOne) {
  ExpectCounts(kRanks, {.reshard_after_forward = 1}, {kUnits, 0, kUnits, 0});
  ExpectCounts(kRanks, {.reshard_after_forward = kRanks}, {kUnits, kUnits, kUnits, 0});
}

TEST(FullyShardCountsTest, TwoDimensionsAllReduceEveryUnit) {
  ExpectCounts(2 * kRanks, {}, {kUnits, kUnits - 1, kUnits, kUnits}, /*replicas=*/2);
}

// PyTorch's replicate() is fully_shard on such a mesh.
TEST(FullyShardCountsTest, AMeshOfReplicasAloneGathersNothingAndAllReducesEveryUnit) {
  ExpectCounts(kRanks, {}, {0, 0, 0, kUnits}, /*replicas=*/kRanks);
}

TEST(FullyShardCountsTest, SetRequiresAllReduceOffLeavesTheAllReduceOut) {
  ExpectCounts(2 * kRanks, {}, {kUnits, kUnits - 1, kUnits, 0}, /*replicas=*/2,
               [](TestFullyShard& test) { return test.root->set_requires_all_reduce(false); });
}

TEST(FullyShardCountsTest, SetRequiresGradientSyncOffReducesNothing) {
  ExpectCounts(kRanks, {}, {kUnits, kUnits - 1, 0, 0}, 1,
               [](TestFullyShard& test) { return test.root->set_requires_gradient_sync(false); });
}

TEST(FullyShardCountsTest, SetRequiresGradientSyncMayBeOfOneUnitAlone) {
  ExpectCounts(kRanks, {}, {kUnits, kUnits - 1, kUnits - 1, 0}, 1, [](TestFullyShard& test) {  //
    return test.root->set_requires_gradient_sync(false, Recurse::kNo);
  });
}

TEST(FullyShardCountsTest, SetReshardAfterForwardReplacesTheRootsDefault) {
  ExpectCounts(kRanks, {}, {kUnits, kUnits, kUnits, 0}, 1,
               [](TestFullyShard& test) { return test.root->set_reshard_after_forward(true); });
  ExpectCounts(kRanks, {}, {kUnits, 0, kUnits, 0}, 1,
               [](TestFullyShard& test) { return test.root->set_reshard_after_forward(false); });
}

TEST(FullyShardCountsTest, SetReshardAfterForwardOffAfterAStepMakesTheMemoryItNeeds) {
  ExpectCounts(kRanks, {}, {kUnits, 0, kUnits, 0}, 1, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    return test.root->set_reshard_after_forward(false);
  });
}

TEST(FullyShardCountsTest, SetReshardAfterBackwardOffKeepsParametersForTheNextStep) {
  ExpectCounts(kRanks, {.reshard_after_forward = false}, {0, 0, kUnits, 0}, 1,
               [](TestFullyShard& test) { return test.root->set_reshard_after_backward(false); });
}

TEST(FullyShardCountsTest, SetUnshardInBackwardOffSparesTheAllGatherOfThatUnit) {
  // The backward of a position embedding reads no parameters.
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    auto log = std::make_shared<RecordingProcessGroup::Log>();
    auto recorded = std::make_shared<RecordingProcessGroup>(std::move(group), "world", log);
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(recorded, {kRanks}, {"shard"}));
    TestSequence model;
    FSDP_ASSIGN_OR_RETURN(
        FsdpModule * positions,
        FullyShard(*model.Add(std::make_unique<PositionEmbedding>(4, 3, Initializer::Constant(1))), mesh));
    model.AddLinear(3, 5);
    FSDP_RETURN_IF_ERROR(positions->set_unshard_in_backward(false));
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    for (int step = 0; step < 2; ++step) {
      log->clear();
      FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(DType::kFloat32, {1, 2, 3}));
      recorded->device()->ops().Zero(x, tape.stream());
      FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
      FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
      FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
      EXPECT_EQ(CountEntries(*log, "all_gather"), 2);
      EXPECT_EQ(CountEntries(*log, "reduce_scatter"), 2);
    }
    return absl::OkStatus();
  }));
}

TEST(FullyShardCountsTest, EvaluationGathersEveryUnitOnceAndReducesNothing) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape(/*training=*/false));
    test.log->clear();
    FSDP_RETURN_IF_ERROR(test.Forward(tape).status());
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    EXPECT_EQ(test.Count("all_gather"), kUnits);
    EXPECT_EQ(test.Count("reduce_scatter"), 0);
    return absl::OkStatus();
  }));
}

TEST(FullyShardCountsTest, ReduceScattersLeaveEachRankItsRowsOfEveryParameterPadded) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(CountStep(test).status());
    // A third of the rows, rounded up, times columns: the second block (2 * 4 + 2 of weight [5, 4] and bias [4]), the
    // first (1 * 5 + 2 + 2 * 5 + 2), the root (2 * 7 + 3).
    std::vector<std::string> outputs;
    for (const std::string& entry : *test.log) {
      if (entry.rfind("reduce_scatter", 0) == 0) outputs.push_back(entry);
    }
    EXPECT_THAT(outputs, ElementsAre("reduce_scatter avg world float32[10]", "reduce_scatter avg world float32[19]",
                                     "reduce_scatter avg world float32[17]"));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
