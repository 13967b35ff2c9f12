// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_writer.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/megatron/dist_source.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_source.h"
#include "fsdp/checkpoint/foreign/megatron/stacks.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_tensors.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

StateDict ModelOf(const std::vector<std::pair<std::string, Shape>>& tensors) {
  std::vector<TestTensor> model;
  for (const auto& [name, shape] : tensors) model.push_back({StateKey::Model(name), DType::kFloat32, shape});
  StateDict state = FullState(model);
  state.aliases.clear();
  return state;
}

// "KEY [lengths]" of each stack.
std::vector<std::string> Keys(const StateDict& state) {
  std::vector<std::string> keys;
  const absl::StatusOr<std::vector<Stack>> stacks = StacksOf(state);
  if (!stacks.ok()) return {std::string(stacks.status().message())};
  for (const Stack& stack : *stacks)
    keys.push_back(absl::StrCat(stack.key, " [", absl::StrJoin(stack.lengths, ", "), "]"));
  return keys;
}

TEST(StacksTest, LayersAndExpertsThatAreAlikeAreStacked) {
  EXPECT_THAT(Keys(ModelOf({{"decoder.layers.1.w", {2}},
                            {"decoder.layers.0.w", {2}},
                            {"decoder.layers.0.mlp.experts.local_experts.0.v", {3}},
                            {"decoder.layers.1.mlp.experts.local_experts.0.v", {3}},
                            {"a", {4}}})),
              UnorderedElementsAre("decoder.layers.w [2]", "decoder.layers.mlp.experts.experts.v [2, 1]", "a []"));
}

// As Megatron-Core does with layers that are not all alike: each has keys of its own, and its experts are stacked.
TEST(StacksTest, ABlockOfDifferentLayersIsNotStacked) {
  EXPECT_THAT(Keys(ModelOf({{"decoder.layers.0.w", {2}},
                            {"decoder.layers.1.w", {2}},
                            {"decoder.layers.1.experts.experts.0.v", {3}},
                            {"decoder.layers.1.experts.experts.1.v", {3}},
                            {"encoder.layers.0.w", {2}}})),
              UnorderedElementsAre("decoder.layers.0.w []", "decoder.layers.1.w []",
                                   "decoder.layers.1.experts.experts.v [2]", "encoder.layers.w [1]"));
  EXPECT_THAT(Keys(ModelOf({{"layers.0.w", {2}}, {"layers.2.w", {2}}})),
              UnorderedElementsAre("layers.0.w []", "layers.2.w []"));
  EXPECT_THAT(Keys(ModelOf({{"layers.0.w", {2}}, {"layers.1.w", {3}}})),
              UnorderedElementsAre("layers.0.w []", "layers.1.w []"));
}

TEST(StacksTest, ANameThatWouldBeReadAsSomethingElseIsRefused) {
  EXPECT_THAT(Keys(ModelOf({{"decoder.layers.w", {2}}})), ElementsAre(HasSubstr("as a stack of layers or experts")));
  EXPECT_THAT(Keys(ModelOf({{"optimizer.w", {2}}})), ElementsAre(HasSubstr("as an optimizer's state")));
  EXPECT_THAT(Keys(ModelOf({{"a._extra_state", {2}}})), ElementsAre(HasSubstr("as the state of a module")));
}

class MegatronWriterTest : public testing::TestWithParam<std::string> {};

// The keys, the shapes and the chunks of what Megatron-Core wrote, and of a copy that this project writes, agree.
TEST_P(MegatronWriterTest, WritesWhatMegatronCoreWrote) {
  const std::string golden = absl::StrCat("checkpoint/foreign/megatron/testdata/", GetParam());
  const std::string copy = NewTestDirectory() + "/run";
  ASSERT_OK_AND_ASSIGN(const auto source, OpenMegatronSource(golden));
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    return source->Read(key, interval, out);
  };
  ASSERT_OK(WriteMegatron(copy, source->contents(), source->step(), read));
  ASSERT_OK_AND_ASSIGN(const auto written, OpenMegatronSource(copy));
  EXPECT_EQ(written->step(), source->step());
  for (const auto& [key, value] : source->contents().entries()) {
    if (!std::holds_alternative<ShardedTensor>(value)) continue;
    ASSERT_OK_AND_ASSIGN(const std::string expected, ReadWhole(*source, key));
    EXPECT_THAT(ReadWhole(*written, key), IsOkAndHolds(expected)) << key.ToString();
  }
  const auto keys = [](const std::string& root) {
    std::vector<std::string> lines;
    const absl::StatusOr<DcpMetadata> metadata = ReadDcpMetadata(root + "/iter_0000007");
    for (const DcpEntry& entry : metadata->entries) {
      if (entry.name().find("rng_state") == 0) continue;
      if (entry.name().find("core_attention") != std::string::npos) continue;  // a module of Transformer Engine
      lines.push_back(entry.is_tensor()
                          ? absl::StrCat(entry.name(), " ", metadata->tensors[entry.tensor()].shape.ToString())
                          : entry.name());
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  EXPECT_EQ(keys(copy), keys(golden));
}

INSTANTIATE_TEST_SUITE_P(Goldens, MegatronWriterTest,
                         testing::Values("gpt_tp1_w1", "gpt_tp2_pp2", "moe_ep2", "gpt_distrib_optim"));

StateDict StateOf(const std::vector<TestTensor>& tensors, const std::string& param_groups = "") {
  StateDict state;
  for (const TestTensor& tensor : tensors) {
    const Interval whole = {0, tensor.shape.numel()};
    state.Set(tensor.key, ShardedTensor{tensor.dtype, tensor.shape, {{whole, MakeElements(tensor, whole)}}});
  }
  if (!param_groups.empty()) state.Set(StateKey::ParamGroups(), param_groups);
  return state;
}

// Two layers with the state of Adam.
std::vector<TestTensor> Layers(const std::string& state = "exp_avg") {
  std::vector<TestTensor> tensors;
  for (const char* const name : {"decoder.layers.0.w", "decoder.layers.1.w"}) {
    tensors.push_back({StateKey::Model(name), DType::kFloat32, {2, 3}});
    tensors.push_back({StateKey::OptimState(name, state), DType::kFloat32, {2, 3}});
  }
  return tensors;
}

constexpr char kGroups[] = R"([{"lr":0.5,"betas":[0.9,0.5],"params":["decoder.layers.0.w","decoder.layers.1.w"]}])";

absl::Status Written(const StateDict& state) {
  const std::string path = NewTestDirectory() + "/run";
  absl::Status status = WriteMegatron(path, state, 7, ReadFromMemory(state));
  EXPECT_EQ(std::filesystem::exists(path), status.ok());
  return status;
}

// A float32 parameter is its own float32 copy.
TEST(MegatronOptimizerTest, StateIsStackedAsItsParameterWhoseBytesAreStoredOnce) {
  const StateDict state = StateOf(Layers(), kGroups);
  const std::string path = NewTestDirectory() + "/run";
  ASSERT_OK(WriteMegatron(path, state, 7, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const DcpMetadata metadata, ReadDcpMetadata(path + "/iter_0000007"));
  std::vector<std::string> keys;
  for (const DcpEntry& entry : metadata.entries) keys.push_back(entry.name());
  EXPECT_THAT(keys, ElementsAre("decoder.layers.w", "optimizer.state.param.decoder.layers.w",
                                "optimizer.state.exp_avg.decoder.layers.w"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenMegatronSource(path));
  for (const char* const name : {"decoder.layers.0.w", "decoder.layers.1.w"}) {
    ASSERT_OK_AND_ASSIGN(const std::string model, ReadWhole(*source, StateKey::Model(name)));
    EXPECT_THAT(ReadWhole(*source, StateKey::OptimState(name, "param")), IsOkAndHolds(model));
  }
  EXPECT_EQ(*source->contents().FindText(StateKey::ParamGroups()), kGroups);
  EXPECT_THAT(*source->contents().FindText(StateKey::Extra("optimizer.common")),
              AllOf(HasSubstr(R"("wd_mult":1.0)"), HasSubstr(R"("wd_mult":0.0)"), HasSubstr("fully_reshardable")));
  EXPECT_LT(std::filesystem::file_size(path + "/iter_0000007/__0_0.distcp"), 5 * 1024u);
}

TEST(MegatronOptimizerTest, GroupsThatMegatronCoreCannotTellApartAreRefused) {
  const std::string groups =
      R"([{"lr":0.5,"params":["decoder.layers.0.w"]},{"lr":0.25,"params":["decoder.layers.1.w"]}])";
  EXPECT_THAT(
      Written(StateOf(Layers(), groups)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot tell group 1 of param_groups from group 0")));
  const std::string decay =
      R"([{"weight_decay":0.5,"params":["decoder.layers.0.w"]},{"weight_decay":0,"params":["decoder.layers.1.w"]}])";
  EXPECT_OK(Written(StateOf(Layers(), decay)));
}

TEST(MegatronOptimizerTest, WhatMegatronCoreHasNoPlaceForIsRefusedByName) {
  const auto refused = [](const TestTensor& more) {
    std::vector<TestTensor> tensors = Layers();
    tensors.push_back(more);
    return Written(StateOf(tensors, kGroups));
  };
  const DType f32 = DType::kFloat32;
  EXPECT_THAT(refused({StateKey::OptimState("decoder.layers.0.w", "row"), f32, {2, 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it has the shape [2, 1]")));
  EXPECT_THAT(refused({StateKey::OptimState("decoder.layers.0.w", "exp_avg_sq"), f32, {2, 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("both are in the stack \"decoder.layers.w\"")));
  EXPECT_THAT(refused({StateKey::OptimState("decoder.layers.0.w", "a.b"), f32, {2, 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a dot in the name of a state")));
  EXPECT_THAT(refused({StateKey::OptimState("c", "exp_avg"), f32, {2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tensor of the model whose state it is")));
}

TEST(MegatronOptimizerTest, StepsThatDifferAreRefusedBeforeAnythingIsThere) {
  std::vector<TestTensor> tensors = Layers();
  for (const char* const name : {"decoder.layers.0.w", "decoder.layers.1.w"}) {
    tensors.push_back({StateKey::OptimState(name, "step"), DType::kFloat32, {}});
  }
  const StateDict state = StateOf(tensors, kGroups);
  const auto step = [&](const char* name) -> float& {
    return *static_cast<float*>(state.FindTensor(StateKey::OptimState(name, "step"))->shards[0].data.data());
  };
  step("decoder.layers.0.w") = step("decoder.layers.1.w") = 5;
  EXPECT_OK(Written(state));
  step("decoder.layers.0.w") = 6;
  EXPECT_THAT(Written(state), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("counts the steps")));
}

TEST(MegatronReleaseTest, AnUnknownStepIsARelease) {
  const StateDict state = ModelOf({{"w", {2}}});
  const std::string copy = NewTestDirectory() + "/run";
  ASSERT_OK(WriteMegatron(copy, state, -1, ReadFromMemory(state)));
  EXPECT_THAT(ListNames(copy), ElementsAre("latest_checkpointed_iteration.txt", "release"));
  EXPECT_EQ(ReadFile(copy + "/latest_checkpointed_iteration.txt"), "release");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenMegatronSource(copy));
  EXPECT_EQ(source->step(), -1);
}

}  // namespace
}  // namespace fsdp
