// SPDX-License-Identifier: Apache-2.0
//
// The files of a universal checkpoint, compared with those that DeepSpeed made, and what it has no place for. DeepSpeed
// itself loads them in tests/trainers.
#include "fsdp/checkpoint/foreign/deepspeed/universal_writer.h"

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kGolden[] = "checkpoint/foreign/deepspeed/testdata/";

StateDict StateOf(const std::vector<TestTensor>& tensors, const std::string& param_groups = "") {
  StateDict state;
  for (const TestTensor& tensor : tensors) {
    const Interval whole = {0, tensor.shape.numel()};
    state.Set(tensor.key, ShardedTensor{tensor.dtype, tensor.shape, {{whole, MakeElements(tensor, whole)}}});
  }
  if (!param_groups.empty()) state.Set(StateKey::ParamGroups(), param_groups);
  return state;
}

// A model of two parameters with the state of Adam.
std::vector<TestTensor> Trained() {
  return {{StateKey::Model("a"), DType::kFloat32, {2, 3}},
          {StateKey::Model("b"), DType::kFloat32, {4}},
          {StateKey::OptimState("a", "exp_avg"), DType::kFloat32, {2, 3}},
          {StateKey::OptimState("b", "exp_avg"), DType::kFloat32, {4}}};
}

constexpr char kGroups[] = R"([{"lr":0.5,"params":["b","a"]}])";

absl::Status Write(const std::string& path, const StateDict& state) {
  return WriteUniversal(path, state, {.step = 7}, ReadFromMemory(state));
}

absl::Status Written(const StateDict& state) {
  const std::string path = NewTestDirectory() + "/run";
  absl::Status status = Write(path, state);
  EXPECT_EQ(fs::exists(path), status.ok());
  return status;
}

// Paths in `directory`, relative to it.
std::set<std::string> FilesIn(const std::string& directory) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(directory));
  }
  return files;
}

class UniversalGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(source_, OpenDeepSpeedSource(absl::StrCat(kGolden, GetParam())));
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      return source_->Read(key, interval, out);
    };
    const UniversalRun run = {.step = source_->step(), .world_size = source_->world_size()};
    ASSERT_OK(WriteUniversal(copy_, source_->contents(), run, read));
    ASSERT_OK_AND_ASSIGN(written_, OpenDeepSpeedSource(copy_));
  }

  const std::string copy_ = NewTestDirectory() + "/run";
  std::unique_ptr<TensorSource> source_;
  std::unique_ptr<TensorSource> written_;
};

INSTANTIATE_TEST_SUITE_P(Goldens, UniversalGoldenTest,
                         testing::Values("universal_z2_w2", "universal_z3_w2/global_step3_universal", "z0_w2_bf16",
                                         "z1_w2_bf16_optimizer", "z1_w2_fp32", "z1_w3_bf16", "z2_w2_aligned",
                                         "z2_w3_fp32_frozen", "z2_w3_round_robin", "z3_w2_subgroups",
                                         "z3_w3_fp32_frozen"));

TEST_P(UniversalGoldenTest, KeepsEveryTensorOfACheckpointOfDeepSpeed) {
  for (const auto& [key, value] : source_->contents().entries()) {
    if (!std::holds_alternative<ShardedTensor>(value)) continue;
    // The float32 copy of ZeRO 0 is the parameter of a universal checkpoint.
    const bool is_master = key.section == StateKey::Section::kOptimState && key.state == "fp32";
    const bool has_master =
        key.section == StateKey::Section::kModel && source_->contents().contains(StateKey::OptimState(key.fqn, "fp32"));
    if (has_master) continue;
    const StateKey wanted = is_master ? StateKey::Model(key.fqn) : key;
    const ShardedTensor* const held = written_->contents().FindTensor(wanted);
    ASSERT_NE(held, nullptr) << key.ToString();
    EXPECT_EQ(held->dtype, std::get<ShardedTensor>(value).dtype) << key.ToString();
    EXPECT_EQ(held->shape, std::get<ShardedTensor>(value).shape) << key.ToString();
    ASSERT_OK_AND_ASSIGN(const std::string expected, ReadWhole(*source_, key));
    EXPECT_THAT(ReadWhole(*written_, wanted), IsOkAndHolds(expected)) << key.ToString();
  }
}

TEST_P(UniversalGoldenTest, KeepsStepRanksAliasesGroupsAndTheProgramsEntries) {
  EXPECT_EQ(written_->step(), source_->step());
  EXPECT_EQ(written_->world_size(), source_->world_size());
  EXPECT_EQ(written_->contents().aliases, source_->contents().aliases);
  for (const auto& [key, value] : source_->contents().entries()) {
    const auto* const text = std::get_if<std::string>(&value);
    if (text == nullptr) continue;
    const std::string* const held = written_->contents().FindText(key);
    ASSERT_NE(held, nullptr) << key.ToString();
    EXPECT_EQ(*held, *text) << key.ToString();
  }
}

// DeepSpeed's has a folder of buffers and tied names too, and one name of the model file.
TEST(UniversalWriterTest, HasTheFilesOfDsToUniversal) {
  const std::string golden = absl::StrCat(kGolden, "universal_z2_w2");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(golden));
  const std::string copy = NewTestDirectory() + "/run";
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    return source->Read(key, interval, out);
  };
  ASSERT_OK(WriteUniversal(copy, source->contents(), {source->step(), source->world_size()}, read));
  EXPECT_EQ(ReadFile(copy + "/latest_universal"), "global_step3_universal");
  std::set<std::string> expected;
  for (const std::string& file : FilesIn(golden + "/global_step3_universal")) {
    bool is_other_name = false;
    for (const char* const other : {"zero/seen/", "zero/count/", "zero/head.weight/"}) {
      is_other_name = is_other_name || absl::StartsWith(file, other);
    }
    if (!is_other_name) expected.insert(file);
  }
  expected.insert("zero_pp_rank_0_mp_rank_00_model_states.pt");
  EXPECT_EQ(FilesIn(copy + "/global_step3_universal"), expected);
}

TEST(UniversalWriterTest, AFloat32CopyIsTheParameterAndTheParameterStaysInTheModelFile) {
  const TestTensor master = {StateKey::OptimState("a", "param"), DType::kFloat32, {2, 3}};
  const StateDict state = StateOf({{StateKey::Model("a"), DType::kBFloat16, {2, 3}}, master});
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(Write(path, state));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(path));
  const Tensor expected = MakeElements(master, {0, 6});
  const std::string bytes(static_cast<const char*>(expected.data()), expected.nbytes());
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("a")), IsOkAndHolds(bytes));
  EXPECT_THAT(source->layout().notes, Contains(HasSubstr("the model's 1 parameter in bfloat16")));
}

TEST(UniversalWriterTest, AParameterThatNeverHadAGradientHasNoStateAndIsNamed) {
  std::vector<TestTensor> tensors = Trained();
  tensors.pop_back();
  const StateDict state = StateOf(tensors, kGroups);
  EXPECT_THAT(CheckUniversal(state),
              IsOkAndHolds(Contains(HasSubstr("1 parameter, \"b\", is without optimizer state"))));
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(Write(path, state));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(path));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("the optimizer's state of 1 parameter, \"zero/b\"")));
}

TEST(UniversalWriterTest, ATensorOutsideOfTheGroupsIsOnlyInTheModelFileAndIsNamed) {
  std::vector<TestTensor> tensors = Trained();
  tensors.push_back({StateKey::Model("running_mean"), DType::kBFloat16, {3}});
  const StateDict state = StateOf(tensors, kGroups);
  EXPECT_THAT(CheckUniversal(state),
              IsOkAndHolds(Contains(
                  AllOf(HasSubstr("\"running_mean\", is in the model file only"), HasSubstr("load_universal")))));
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(Write(path, state));
  EXPECT_FALSE(fs::exists(path + "/global_step7_universal/zero/running_mean"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(path));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("running_mean"))->dtype, DType::kBFloat16);
}

TEST(UniversalWriterTest, GroupsKeepTheirOrder) {
  const StateDict state = StateOf(Trained(), kGroups);
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(Write(path, state));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(path));
  ASSERT_NE(source->contents().FindText(StateKey::ParamGroups()), nullptr);
  EXPECT_THAT(*source->contents().FindText(StateKey::ParamGroups()), HasSubstr(R"("params":["b","a"])"));
}

TEST(UniversalWriterTest, AModelWithoutGroupsSaysWhatDeepSpeedNeeds) {
  EXPECT_THAT(CheckUniversal(StateOf({{StateKey::Model("a"), DType::kFloat32, {2}}})),
              IsOkAndHolds(ElementsAre(HasSubstr("load it with an optimizer of one group"))));
}

TEST(UniversalWriterTest, WhatDeepSpeedHasNoPlaceForIsRefusedByName) {
  const auto refused = [](std::vector<TestTensor> tensors, const TestTensor& more, const std::string& groups = "") {
    tensors.push_back(more);
    return Written(StateOf(tensors, groups));
  };
  const DType f32 = DType::kFloat32;
  for (const std::string& name : {std::string("a/b"), std::string(".."), std::string(256, 'x')}) {
    EXPECT_THAT(refused({}, {StateKey::Model(name), f32, {2}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no folder can have it")))
        << name;
  }
  EXPECT_THAT(refused({}, {StateKey::Model("optimizer_state.pt"), f32, {2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a file of DeepSpeed has that name")));
  EXPECT_THAT(refused(Trained(), {StateKey::OptimState("a", "row"), f32, {2, 1}}, kGroups),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optim/state/a/row")));
  EXPECT_THAT(refused(Trained(), {StateKey::OptimState("a", "exp_avg_sq"), f32, {2, 3}}, kGroups),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the same files for each parameter")));
  EXPECT_THAT(refused(Trained(), {StateKey::OptimState("c", "exp_avg"), f32, {2}}, kGroups),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tensor of the model whose state it is")));
  EXPECT_THAT(Written(StateOf(Trained(), R"([{"params":["a"]}])")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is in no group of param_groups")));
  EXPECT_THAT(Written(StateOf(Trained(), R"([{"params":["a","b"]},{"params":["a"]}])")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in param_groups twice")));
  StateDict extra = StateOf(Trained(), kGroups);
  extra.Set(StateKey::Extra("param_shapes"), std::string("1"));
  EXPECT_THAT(Written(extra), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"param_shapes\"")));
}

TEST(UniversalWriterTest, StepsThatDifferInAGroupAreRefusedBeforeAnythingIsThere) {
  const StateDict state = StateOf({{StateKey::Model("a"), DType::kFloat32, {2}},
                                   {StateKey::Model("b"), DType::kFloat32, {2}},
                                   {StateKey::OptimState("a", "step"), DType::kFloat32, {}},
                                   {StateKey::OptimState("b", "step"), DType::kFloat32, {}}},
                                  kGroups);
  float& step = *static_cast<float*>(state.FindTensor(StateKey::OptimState("a", "step"))->shards[0].data.data());
  step = *static_cast<float*>(state.FindTensor(StateKey::OptimState("b", "step"))->shards[0].data.data());
  EXPECT_OK(Written(state));
  step += 1;
  EXPECT_THAT(Written(state), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optim/state/a/step")));
}

TEST(UniversalWriterTest, TwoModelFilesThatDifferAreOfTwoSaves) {
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(Write(path, StateOf(Trained(), kGroups)));
  const std::string copy = path + "/global_step7_universal/zero_pp_rank_0_mp_rank_00_model_states.pt";
  std::string bytes = ReadFile(copy);
  bytes[bytes.size() / 2] ^= 1;
  WriteAll(copy, bytes);
  EXPECT_THAT(OpenDeepSpeedSource(path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of two saves")));
  fs::remove(copy);
  EXPECT_OK(OpenDeepSpeedSource(path).status());
}

}  // namespace
}  // namespace fsdp
