// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_writer.h"

#include <algorithm>
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
    if (!std::holds_alternative<ShardedTensor>(value) || key.section != StateKey::Section::kModel) continue;
    ASSERT_OK_AND_ASSIGN(const std::string expected, ReadWhole(*source, key));
    EXPECT_THAT(ReadWhole(*written, key), IsOkAndHolds(expected)) << key.ToString();
  }
  const auto keys = [](const std::string& root) {
    std::vector<std::string> lines;
    const absl::StatusOr<DcpMetadata> metadata = ReadDcpMetadata(root + "/iter_0000007");
    for (const DcpEntry& entry : metadata->entries) {
      if (entry.name().find("optimizer.") == 0 || entry.name().find("rng_state") == 0) continue;
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
