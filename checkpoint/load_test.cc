// SPDX-License-Identifier: Apache-2.0
//
// The values that LoadCheckpoint converts, refuses and leaves unchanged.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class LoadTest : public testing::Test {
 protected:
  LoadTest() : path_(NewTestDirectory() + "/checkpoint") {
    const StateDict state = FullState(tensors_);
    EXPECT_OK(WriteCheckpointDirectory(path_, state, ReadFromMemory(state),
                                       {.type = StateDictType::kSharded, .world_size = 3, .step = 12}));
  }

  const std::vector<TestTensor> tensors_ = AwkwardTensors();
  const std::string path_;
};

TEST_F(LoadTest, ConvertsToTheWantedDType) {
  std::vector<TestTensor> wanted_tensors = tensors_;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (TestTensor& tensor : wanted_tensors) {
      const bool holds_any_number =
          tensor.dtype != DType::kBool && tensor.dtype != DType::kFloat8E8M0FNU && !IsPacked(tensor.dtype);
      if (holds_any_number) tensor.dtype = dtype;
    }
    StateDict wanted = WantedState(wanted_tensors, 2, 1);
    EXPECT_OK(LoadCheckpoint(path_, wanted));
    EXPECT_OK(CheckState(wanted_tensors, wanted));
  }
}

TEST_F(LoadTest, AnotherShapeIsRefusedWithBoth) {
  StateDict wanted = WantedState({{StateKey::Model("wte.weight"), DType::kFloat32, {48, 257}}}, 1, 0);
  EXPECT_THAT(LoadCheckpoint(path_, wanted),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"model/wte.weight\": stored shape [257, 48] != wanted [48, 257] in ")));
}

TEST_F(LoadTest, MissingValuesAreAnErrorOrLeftAlone) {
  const std::vector<TestTensor> tensors = {{StateKey::Model("wte.weight"), DType::kFloat32, {257, 48}},
                                           {StateKey::Model("absent"), DType::kFloat32, {2}}};
  StateDict wanted = WantedState(tensors, 1, 0);
  EXPECT_THAT(LoadCheckpoint(path_, wanted),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("does not hold what is wanted: \"model/absent\"")));
  std::vector<std::string> missing;
  EXPECT_OK(LoadCheckpoint(path_, wanted, {.strict = false, .missing = &missing}));
  EXPECT_THAT(missing, ElementsAre("model/absent"));
  EXPECT_OK(CheckState({tensors[0]}, wanted));
  EXPECT_EQ(*wanted.FindTensor(StateKey::Model("absent"))->shards[0].data.data_as<uint8_t>(), 0xA5);
}

TEST_F(LoadTest, EscapeSequencesInNamesDoNotReachTheTerminal) {
  const StateKey hostile = StateKey::Model("w\x1b[2J");
  StateDict wanted = WantedState({{hostile, DType::kFloat32, {2}}}, 1, 0);
  EXPECT_THAT(LoadCheckpoint(path_, wanted),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("\"model/w\\"), Not(HasSubstr("\x1b")))));
  const StateDict empty;
  EXPECT_THAT(ReadFromMemory(empty)(hostile, {0, 2}, nullptr),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("\"model/w\\"), Not(HasSubstr("\x1b")))));
}

TEST_F(LoadTest, TextsAndTensorsAreNotMixedUp) {
  StateDict wanted;
  wanted.Set(StateKey::Extra("rng"), std::string());
  EXPECT_THAT(LoadCheckpoint(path_, wanted),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a text is wanted, but a tensor stored")));
  wanted = WantedState({{StateKey::Extra("schedule"), DType::kUInt8, {3}}}, 1, 0);
  wanted.Set(StateKey::Extra("schedule"), ShardedTensor());
  EXPECT_THAT(LoadCheckpoint(path_, wanted),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a tensor is wanted, but a text stored")));
}

TEST_F(LoadTest, MemoryThatDoesNotFitIsRefused) {
  StateDict wanted = WantedState({{StateKey::Model("wte.weight"), DType::kFloat32, {257, 48}}}, 1, 0);
  ShardedTensor tensor = *wanted.FindTensor(StateKey::Model("wte.weight"));
  tensor.shards[0].interval = {0, 5};
  wanted.Set(StateKey::Model("wte.weight"), tensor);
  EXPECT_THAT(LoadCheckpoint(path_, wanted), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not fit")));
  tensor.shards[0].interval = {257 * 48, 2 * 257 * 48};
  wanted.Set(StateKey::Model("wte.weight"), tensor);
  EXPECT_THAT(LoadCheckpoint(path_, wanted), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 12336")));
}

TEST_F(LoadTest, DescribesWhatCanBeWanted) {
  ASSERT_OK_AND_ASSIGN(const StateDict described, DescribeCheckpoint(path_));
  for (const TestTensor& tensor : tensors_) {
    const ShardedTensor* found = described.FindTensor(tensor.key);
    ASSERT_NE(found, nullptr) << tensor.key.ToString();
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_TRUE(found->shards.empty());
  }
  EXPECT_EQ(described.type, StateDictType::kSharded);
  ASSERT_EQ(described.units.size(), 1);
  EXPECT_EQ(described.units[0].parameters[0].fqn, "h.0.bias");
  EXPECT_THAT(CheckpointStep(path_), IsOkAndHolds(12));
}

TEST_F(LoadTest, TheStepIsReadFromTheManifestAlone) {
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (entry.path().filename() != "manifest.json") std::filesystem::remove(entry.path());
  }
  EXPECT_THAT(CheckpointStep(path_), IsOkAndHolds(12));
}

TEST_F(LoadTest, AnUnknownStepIsAnErrorAndNotStepZero) {
  const StateDict state = FullState(tensors_);
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    const std::string root = NewTestDirectory();
    const std::string path = root + "/step-00000000";
    ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), {.type = type, .step = -1}));
    EXPECT_THAT(CheckpointStep(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not record its step; only its weights")));
    StateDict wanted = WantedState(tensors_, 1, 0);
    EXPECT_OK(LoadCheckpoint(path, wanted));
    EXPECT_THAT(LoadCheckpoint(root, wanted),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-00000000 does not verify: its manifest is of "
                                                                "an unknown step")));
  }
}

TEST_F(LoadTest, NoCheckpointIsNotFound) {
  StateDict wanted;
  EXPECT_THAT(LoadCheckpoint(path_ + "-absent", wanted), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CheckpointStep(path_ + "-absent"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(LoadMomentTest, AMissingMomentIsAnErrorThatNamesItInEveryKind) {
  const std::vector<TestTensor> saved = AwkwardTensors();
  std::vector<TestTensor> wanted_tensors = saved;
  wanted_tensors.push_back({StateKey::OptimState("wte.weight", "exp_avg_sq"), DType::kFloat32, {257, 48}});
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    const std::string root = NewTestDirectory();
    ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      return SaveCheckpoint(StateOf(type, saved, 2, group->rank()), root, 1, *group).status();
    }));
    StateDict wanted = WantedState(wanted_tensors, 1, 0);
    EXPECT_THAT(LoadCheckpoint(root + "/step-00000001", wanted),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"optim/state/wte.weight/exp_avg_sq\"")));
    // Non-strict: a missing tensor is left as it was, never a silent zero.
    std::vector<std::string> missing;
    ASSERT_OK(LoadCheckpoint(root + "/step-00000001", wanted, {.strict = false, .missing = &missing}));
    EXPECT_THAT(missing, ElementsAre("optim/state/wte.weight/exp_avg_sq"));
    const ShardedTensor* moment = wanted.FindTensor(wanted_tensors.back().key);
    EXPECT_EQ(moment->shards[0].data.data_as<uint8_t>()[0], 0xA5);
  }
}

// For example a parameter that no step used under fully_shard.
TEST(LoadNeverSteppedTest, AParameterOfWhichTheOptimizerHasNoStateIsNamedAndNoError) {
  const TestTensor a = {StateKey::Model("a"), DType::kFloat32, {3}};
  const TestTensor b = {StateKey::Model("b"), DType::kFloat32, {2}};
  const TestTensor state_of_a = {StateKey::OptimState("a", "exp_avg"), DType::kFloat32, {3}};
  const TestTensor state_of_b = {StateKey::OptimState("b", "exp_avg"), DType::kFloat32, {2}};
  const auto save = [](const std::vector<TestTensor>& tensors) {
    const std::string root = NewTestDirectory();
    StateDict state = FullState(tensors);
    state.aliases.clear();  // they name tensors that are not here
    EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      return SaveCheckpoint(state, root, 1, *group).status();
    }));
    return root + "/step-00000001";
  };
  StateDict wanted = WantedState({a, b, state_of_a, state_of_b}, 1, 0);
  std::vector<std::string> missing;
  EXPECT_OK(LoadCheckpoint(save({a, b, state_of_a}), wanted, {.missing = &missing}));
  EXPECT_THAT(missing, ElementsAre("optim/state/b/exp_avg"));
  // A model-only checkpoint has no optimizer that could have left a parameter out.
  EXPECT_THAT(LoadCheckpoint(save({a, b}), wanted),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("optim/state/a/exp_avg")));
  EXPECT_THAT(LoadCheckpoint(save({a, state_of_a}), wanted), StatusIs(absl::StatusCode::kNotFound, HasSubstr("b")));
}

TEST(LoadNeverSteppedTest, AnOptimizerThatWasSavedBeforeItsFirstStepHasNoStateAndIsNoError) {
  const TestTensor a = {StateKey::Model("a"), DType::kFloat32, {3}};
  const TestTensor state_of_a = {StateKey::OptimState("a", "exp_avg"), DType::kFloat32, {3}};
  const std::string root = NewTestDirectory();
  const auto save = [&](int64_t step) {
    StateDict state = FullState({a});
    state.aliases.clear();  // they name tensors that are not here
    state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["a"]}])"));
    EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      return SaveCheckpoint(state, root, step, *group).status();
    }));
    return absl::StrCat(root, "/step-0000000", step);
  };
  StateDict wanted = WantedState({a, state_of_a}, 1, 0);
  std::vector<std::string> missing;
  EXPECT_OK(LoadCheckpoint(save(0), wanted, {.missing = &missing}));
  EXPECT_THAT(missing, ElementsAre("optim/state/a/exp_avg"));
  // Of a later step, it is an optimizer without such a state: SGD's, for AdamW.
  EXPECT_THAT(LoadCheckpoint(save(5), wanted),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("optim/state/a/exp_avg")));
}

}  // namespace
}  // namespace fsdp
