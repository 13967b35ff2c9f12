// SPDX-License-Identifier: Apache-2.0
//
// The history of a run, from checkpoints of a small model whose values follow from their step.
#include "fsdp/tools/inspect/run_history.h"

#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/tools/inspect/run_trouble.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// By name: all elements of a tensor of float32 have one value, except that the last may be another.
struct Fill {
  float value = 0;
  float last = 0;
};
using Fills = std::map<std::string, Fill>;

constexpr int64_t kNumel = 100;

class RunHistoryTest : public testing::Test {
 protected:
  RunHistoryTest() : root_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~RunHistoryTest() override { fs::remove_all(root_); }

  std::string Path(int step) const { return absl::StrFormat("%s/step-%08d", root_, step); }

  // Tensors [kNumel] of the model; a name that begins with "optim:" is its exp_avg.
  void Save(int step, const Fills& fills, int world_size = 1) const {
    StateDict state;
    for (const auto& [name, fill] : fills) {
      ShardedTensor tensor;
      tensor.dtype = DType::kFloat32;
      tensor.shape = Shape({kNumel});
      state.Set(KeyOf(name), tensor);
    }
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      for (const auto& [name, fill] : fills) {
        if (!(KeyOf(name) == key)) continue;
        for (int64_t i = 0; i < interval.size(); ++i) {
          static_cast<float*>(out)[i] = interval.begin + i + 1 == kNumel ? fill.last : fill.value;
        }
      }
      return absl::OkStatus();
    };
    ASSERT_OK(WriteCheckpointDirectory(Path(step), state, read,
                                       {.type = world_size > 1 ? StateDictType::kSharded : StateDictType::kFull,
                                        .world_size = world_size,
                                        .step = step}));
  }

  static StateKey KeyOf(const std::string& name) {
    return name.rfind("optim:", 0) == 0 ? StateKey::OptimState(name.substr(6), "exp_avg") : StateKey::Model(name);
  }

  RunHistory Read(int64_t max_memory = int64_t{512} << 20) const {
    absl::StatusOr<RunHistory> history = ReadRunHistory(root_, {.max_memory = max_memory, .progress = {}});
    EXPECT_OK(history.status());
    return history.ok() ? *std::move(history) : RunHistory();
  }

  const std::string root_;
};

TEST_F(RunHistoryTest, NormsAndChangesAreOfEachLayer) {
  Save(1, {{"h.0.w", {1, 1}}, {"h.1.w", {2, 2}}}, 1);
  // On other ranks: the change of an element does not depend on where it is stored.
  Save(2, {{"h.0.w", {1, 1}}, {"h.1.w", {3, 3}}}, 3);
  const RunHistory history = Read();
  EXPECT_THAT(history.layers, ElementsAre("h.0", "h.1"));
  ASSERT_EQ(history.steps.size(), 2u);
  EXPECT_EQ(history.steps[0].layers[0].norm(), 10);
  EXPECT_EQ(history.steps[0].layers[1].norm(), 20);
  EXPECT_EQ(history.steps[0].layers[1].change(), std::nullopt);
  EXPECT_EQ(history.steps[1].world_size, 3);
  EXPECT_EQ(history.steps[1].layers[0].change(), 0);
  EXPECT_EQ(history.steps[1].layers[1].change(), 0.5);
  EXPECT_EQ(history.steps[1].model().squares_changed, 100);
  EXPECT_EQ(history.steps[1].model().change(), std::sqrt(100.0) / std::sqrt(500.0));
}

TEST_F(RunHistoryTest, ValuesThatAreNotFiniteAreCountedInModelAndOptimizer) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  Save(1, {{"h.0.w", {1, 1}}, {"optim:h.0.w", {1, 1}}});
  Save(2, {{"h.0.w", {1, nan}}, {"optim:h.0.w", {1, inf}}});
  const RunHistory history = Read();
  const LayerAtStep& layer = history.steps[1].layers[0];
  EXPECT_EQ(layer.nonfinite.nan, 1);
  EXPECT_EQ(layer.nonfinite.inf, 1);
  EXPECT_EQ(layer.squares, 99) << "of the model's finite values";
  EXPECT_EQ(layer.change(), 0);
}

// A group of few steps at a time must give the same as all together.
TEST_F(RunHistoryTest, GroupsOfStepsAreJoined) {
  for (int step = 1; step <= 40; ++step) Save(step, {{"w", {static_cast<float>(step), 0}}});
  const RunHistory all = Read();
  const RunHistory grouped = Read(kMinRunHistoryMemory);
  ASSERT_EQ(all.steps.size(), 40u);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(all.steps[i].layers[0].squares, 99.0 * (i + 1) * (i + 1)) << i;
    EXPECT_EQ(grouped.steps[i].layers[0].squares, all.steps[i].layers[0].squares) << i;
    EXPECT_EQ(grouped.steps[i].layers[0].change(), all.steps[i].layers[0].change()) << i;
    if (i > 0) {
      EXPECT_NEAR(*all.steps[i].layers[0].change(), 1.0 / i, 1e-12);
    }
  }
}

TEST_F(RunHistoryTest, FewDescriptorsMakeSmallerGroupsAndTooFewAreNamed) {
  for (int step = 1; step <= 6; ++step) Save(step, {{"w", {static_cast<float>(step), 0}}}, 8);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto limited = [&](rlim_t limit) {
    rlimit low = before;
    low.rlim_cur = limit;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    absl::StatusOr<RunHistory> history = ReadRunHistory(root_, {});
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    return history;
  };
  const absl::StatusOr<RunHistory> history = limited(60);
  ASSERT_OK(history.status());
  EXPECT_NEAR(*history->steps[5].layers[0].change(), 0.2, 1e-12);
  EXPECT_THAT(limited(30).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("step-00000001 and the step after it need"), HasSubstr("raise ulimit -n"))));
}

TEST_F(RunHistoryTest, ADamagedStepIsNamedAndTheOthersAreRead) {
  for (int step = 1; step <= 4; ++step) Save(step, {{"w", {static_cast<float>(step), 0}}});
  // A value in the payload of step 2, which its metadata do not show; and a file of step 4.
  const std::string file = Path(2) + "/checkpoint.h5";
  std::string bytes = ReadFile(file);
  const std::string twos("\0\0\0\x40\0\0\0\x40", 8);
  const size_t at = bytes.find(twos);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 1;
  std::ofstream(file, std::ios::binary) << bytes;
  fs::remove(Path(4) + "/checkpoint.h5");
  const RunHistory history = Read();
  EXPECT_THAT(history.steps[1].problem, AllOf(HasSubstr("does not verify: "), HasSubstr("digest")));
  EXPECT_THAT(history.steps[3].problem, HasSubstr("checkpoint.h5"));
  EXPECT_TRUE(history.steps[1].layers.empty());
  EXPECT_EQ(history.steps[2].layers[0].squares, 99 * 9);
  EXPECT_EQ(history.steps[2].layers[0].change(), std::nullopt) << "the step before is damaged";
  EXPECT_THAT(FindTrouble(history),
              ElementsAre("2 steps are damaged or could not be read: step-00000002, step-00000004."));
}

TEST_F(RunHistoryTest, ARootWithoutAStepThatCanBeReadIsAnError) {
  EXPECT_THAT(ReadRunHistory(root_, {}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("holds no checkpoint")));
  Save(1, {{"w", {1, 1}}});
  fs::remove(Path(1) + "/checkpoint.h5");
  EXPECT_THAT(ReadRunHistory(root_, {}).status(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("holds no checkpoint that verifies; step-00000001"),
                                                          HasSubstr("checkpoint.h5"))));
  EXPECT_THAT(ReadRunHistory(root_, {.max_memory = 1, .progress = {}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected at least 64MiB")));
}

TEST_F(RunHistoryTest, TensorsThatComeAndGoOrChangeTheirShapeAreNotCompared) {
  Save(1, {{"a.w", {1, 1}}, {"b.w", {1, 1}}});
  Save(2, {{"a.w", {1, 1}}, {"c.w", {5, 5}}});
  const RunHistory history = Read();
  EXPECT_THAT(history.layers, ElementsAre("a", "b", "c"));
  EXPECT_EQ(history.steps[1].layers[0].change(), 0);
  EXPECT_EQ(history.steps[1].layers[1].numel, 0);
  EXPECT_EQ(history.steps[1].layers[2].change(), std::nullopt);
}

// A history of one layer with these changes, of a norm of 1.
RunHistory HistoryOf(const std::vector<double>& changes) {
  RunHistory history;
  history.layers = {"h.0"};
  for (size_t i = 0; i < changes.size(); ++i) {
    RunStep& step = history.steps.emplace_back();
    step.step = static_cast<int64_t>(100 * i);
    step.layers.resize(1);
    step.layers[0] = {.numel = 1,
                      .squares = 1,
                      .nonfinite = {},
                      .squares_before = 1,
                      .squares_changed = changes[i] * changes[i],
                      .has_change = i > 0};
  }
  return history;
}

TEST(FindTroubleTest, AJumpIsAgainstTheChangesBefore) {
  EXPECT_THAT(FindTrouble(HistoryOf({0, 0.5, 0.01, 0.01, 0.01, 0.02})), ElementsAre()) << "the first change is large";
  EXPECT_THAT(FindTrouble(HistoryOf({0, 0.01, 0.01, 0.01, 0.25, 0.01, 1})),
              ElementsAre("The first jump: at step 400 h.0 changed by 0.25 of its norm, 25 times the median of its "
                          "changes before. The largest: at step 600 h.0 changed by 1 of its norm, 100 times the median "
                          "of its changes before."));
}

TEST(FindTroubleTest, TheFirstValuesThatAreNotFiniteAreNamed) {
  RunHistory history = HistoryOf({0, 0.01, 0.01});
  history.steps[1].layers[0].nonfinite.nan = 3;
  history.steps[2].layers[0].nonfinite.nan = 100;
  EXPECT_THAT(FindTrouble(history),
              ElementsAre("Step 100 has the first values that are not finite, in h.0 (3 NaN, 0 infinite)."));
}

TEST(FindTroubleTest, LayersThatNeverChangeAreNamed) {
  RunHistory history = HistoryOf({0, 0, 0});
  EXPECT_THAT(FindTrouble(history), ElementsAre("No value of the model ever changed."));
  history.layers.push_back("h.1");
  for (RunStep& step : history.steps) step.layers.push_back(step.layers[0]);
  history.steps[1].layers[1].squares_changed = 1;
  EXPECT_THAT(FindTrouble(history), ElementsAre("Never changed: h.0."));
}

}  // namespace
}  // namespace fsdp
