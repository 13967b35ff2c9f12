// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/diff.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A tensor of more than one piece, and tensors of other dtypes.
std::vector<TestTensor> Tensors() {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {1100, 4099}},
          {StateKey::OptimState("wte.weight", "exp_avg"), DType::kBFloat16, {9, 4}},
          {StateKey::Model("mask"), DType::kBool, {13}},
          {StateKey::Model("count"), DType::kInt64, {}},
          {StateKey::Model("empty"), DType::kFloat32, {0}}};
}

std::unique_ptr<TensorSource> Write(const StateDict& state, StateDictType type = StateDictType::kFull,
                                    int world_size = 1) {
  const std::string path = NewTestDirectory() + "/checkpoint";
  CheckpointDirectoryOptions options;
  options.type = type;
  options.world_size = world_size;
  EXPECT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
  absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(path);
  EXPECT_OK(source.status());
  return *std::move(source);
}

DiffReport Compare(const TensorSource& a, const TensorSource& b, const DiffOptions& options = {}) {
  absl::StatusOr<DiffReport> report = DiffCheckpoints(a, b, options);
  EXPECT_OK(report.status());
  return report.ok() ? *report : DiffReport();
}

TEST(DiffTest, KindsAndWorldSizesMakeNoDifference) {
  const StateDict state = FullState(Tensors());
  const auto full = Write(state);
  for (const int world_size : {1, 2, 3, 7}) {
    const auto sharded = Write(state, StateDictType::kSharded, world_size);
    const DiffReport report = Compare(*full, *sharded);
    EXPECT_TRUE(report.equal());
    EXPECT_EQ(report.tensors.size(), Tensors().size());
    EXPECT_EQ(report.total.numel, 1100 * 4099 + 36 + 13 + 1);
    EXPECT_EQ(report.total.changed, 0);
  }
}

TEST(DiffTest, OneChangedElementIsFoundWhereverItIs) {
  const auto before = Write(FullState(Tensors()), StateDictType::kSharded, 3);
  for (const int64_t at : {int64_t{0}, int64_t{4} << 20, int64_t{1100 * 4099 - 1}}) {
    StateDict changed = FullState(Tensors());
    const ShardedTensor* tensor = changed.FindTensor(StateKey::Model("wte.weight"));
    auto* values = static_cast<float*>(tensor->shards[0].data.data());
    values[at] += 2;
    const auto after = Write(changed, StateDictType::kSharded, 2);
    const DiffReport report = Compare(*before, *after);
    EXPECT_FALSE(report.equal());
    EXPECT_EQ(report.tensors[0].name, "model/wte.weight");
    EXPECT_EQ(report.tensors[0].values.changed, 1);
    EXPECT_EQ(report.tensors[0].values.first_changed, at);
    EXPECT_EQ(report.tensors[0].values.max_abs, 2);
    EXPECT_TRUE(report.tensors[1].equal());
    EXPECT_TRUE(Compare(*before, *after, {.tolerance = {.atol = 2}}).equal());
    EXPECT_FALSE(Compare(*before, *after, {.tolerance = {.atol = 1.5}}).equal());
  }
}

TEST(DiffTest, NamesShapesDTypesAndTextsAreStructure) {
  StateDict a = FullState({{StateKey::Model("kept"), DType::kFloat32, {2, 3}},
                           {StateKey::Model("gone"), DType::kFloat32, {1}},
                           {StateKey::Model("turned"), DType::kFloat32, {2, 3}},
                           {StateKey::Model("narrowed"), DType::kFloat32, {2}}});
  StateDict b = FullState({{StateKey::Model("kept"), DType::kFloat32, {2, 3}},
                           {StateKey::Model("turned"), DType::kFloat32, {3, 2}},
                           {StateKey::Model("narrowed"), DType::kBFloat16, {2}},
                           {StateKey::Extra("new"), DType::kInt64, {}}});
  a.Set(StateKey::Extra("position"), std::string("{\"next\": 17}"));
  b.Set(StateKey::Extra("position"), std::string("{\"next\": 18}"));
  a.aliases = {{"tied", "kept"}};
  b.aliases = {{"tied", "turned"}};
  const DiffReport report = Compare(*Write(a), *Write(b));
  EXPECT_FALSE(report.equal());
  EXPECT_THAT(report.only_in_a, ElementsAre("model/gone"));
  EXPECT_THAT(report.only_in_b, ElementsAre("extra/new"));
  EXPECT_THAT(report.structure, ElementsAre("text \"extra/position\" differs at [\"next\"]: 17 in A, 18 in B",
                                            "\"tied\" is an alias of \"kept\" in A only",
                                            "\"tied\" is an alias of \"turned\" in B only"));
  ASSERT_EQ(report.tensors.size(), 3);
  EXPECT_TRUE(report.tensors[0].equal());
  EXPECT_FALSE(report.tensors[1].equal());
  EXPECT_EQ(report.tensors[1].values.numel, 0);
  EXPECT_FALSE(report.tensors[2].equal());
  EXPECT_EQ(report.tensors[2].dtype_b, DType::kBFloat16);
}

// Regression: param_groups of two programs, with other blanks and their members in another order.
TEST(DiffTest, TextsOfOneValueAreEqualHoweverTheyAreSpelled) {
  StateDict a = FullState({{StateKey::Model("w"), DType::kFloat32, {2}}});
  a.aliases.clear();
  StateDict b = a;
  a.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.001,"params":["w"]}])"));
  b.Set(StateKey::ParamGroups(), std::string(R"([{"params": ["w"], "lr": 1e-3}])"));
  const DiffReport report = Compare(*Write(a), *Write(b));
  EXPECT_TRUE(report.equal());
  EXPECT_EQ(report.respelled_texts, 1);
}

TEST(DiffTest, SafetensorsOfTheModelIsTheModel) {
  const StateDict state = ShardedState(Tensors(), 1, 0);  // with an alias and param_groups
  const auto ours = Write(state);
  const std::string path = NewTestDirectory() + "/model.safetensors";
  ASSERT_OK(WriteSafetensors(path, state, ReadFromMemory(state), {}));
  ASSERT_OK_AND_ASSIGN(const auto theirs, OpenTensorSource(path));
  EXPECT_TRUE(Compare(*ours, *theirs, {.model_only = true}).equal());
  EXPECT_THAT(Compare(*ours, *theirs).only_in_a, testing::Contains("optim/state/wte.weight/exp_avg"));
}

TEST(DiffTest, MetadataOfSafetensorsIsTheExtraTextOfOurs) {
  StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {3}}});
  const std::string path = NewTestDirectory() + "/model.safetensors";
  SafetensorsOptions options;
  options.metadata = {{"format", "pt"}, {"author", "somebody"}};
  ASSERT_OK(WriteSafetensors(path, state, ReadFromMemory(state), options));
  ASSERT_OK_AND_ASSIGN(const auto theirs, OpenTensorSource(path));
  EXPECT_THAT(Compare(*theirs, *Write(state)).only_in_a, ElementsAre("extra/__metadata__"));
  state.Set(StateKey::Extra("__metadata__"), std::string(R"({"author":"somebody","format":"pt"})"));
  const DiffReport same = Compare(*theirs, *Write(state));
  EXPECT_THAT(same.only_in_a, IsEmpty());
  EXPECT_THAT(same.only_in_b, testing::Not(testing::Contains("extra/__metadata__")));
  EXPECT_THAT(same.structure, IsEmpty());
  state.Set(StateKey::Extra("__metadata__"), std::string(R"({"author":"nobody","format":"pt"})"));
  EXPECT_THAT(Compare(*Write(state), *theirs).structure, ElementsAre(HasSubstr("extra/__metadata__")));
}

TEST(DiffTest, ATiedWeightStoredTwiceIsComparedUnderBothNames) {
  const TestTensor tensor = {StateKey::Model("wte.weight"), DType::kFloat32, {5, 3}};
  StateDict once = FullState({tensor});
  once.aliases = {{"head.weight", "wte.weight"}};
  StateDict twice = FullState({tensor});
  twice.aliases.clear();
  twice.Set(StateKey::Model("head.weight"), ShardedTensor(*twice.FindTensor(tensor.key)));
  const std::string path = NewTestDirectory() + "/model.safetensors";
  ASSERT_OK(WriteSafetensors(path, twice, ReadFromMemory(twice), {}));
  ASSERT_OK_AND_ASSIGN(const auto a, OpenTensorSource(path));
  const auto b = Write(once);
  for (const bool swapped : {false, true}) {
    const DiffReport report = swapped ? Compare(*b, *a, {.model_only = true}) : Compare(*a, *b, {.model_only = true});
    EXPECT_TRUE(report.equal());
    EXPECT_EQ(report.tensors.size(), 2);
    EXPECT_THAT(report.only_in_b, IsEmpty());
  }
}

// Regression: it was reported as only_in_a under its own name, and compared as well.
TEST(DiffTest, ATiedWeightThatBHoldsUnderAnAliasOfAIsComparedOnce) {
  const TestTensor tensor = {StateKey::Model("wte.weight"), DType::kFloat32, {5, 3}};
  StateDict a = FullState({tensor});
  a.aliases = {{"head.weight", "wte.weight"}};
  StateDict b;
  b.Set(StateKey::Model("head.weight"), ShardedTensor(*a.FindTensor(tensor.key)));
  const std::string path = NewTestDirectory() + "/model.safetensors";
  ASSERT_OK(WriteSafetensors(path, b, ReadFromMemory(b), {}));
  ASSERT_OK_AND_ASSIGN(const auto theirs, OpenTensorSource(path));
  const auto ours = Write(a);
  for (const bool swapped : {false, true}) {
    const DiffReport report =
        swapped ? Compare(*theirs, *ours, {.model_only = true}) : Compare(*ours, *theirs, {.model_only = true});
    EXPECT_TRUE(report.equal());
    EXPECT_EQ(report.tensors.size(), 1);
    EXPECT_THAT(report.only_in_a, IsEmpty());
    EXPECT_THAT(report.only_in_b, IsEmpty());
  }
}

TEST(DiffTest, NamesThatDifferByAPrefixAreComparedUnderTheirCommonRest) {
  StateDict a = FullState({{StateKey::Model("net.wte.weight"), DType::kFloat32, {5, 3}},
                           {StateKey::Model("net.h.0.bias"), DType::kFloat32, {7}},
                           {StateKey::OptimState("net.h.0.bias", "mu"), DType::kFloat32, {7}},
                           {StateKey::Extra("net.position"), DType::kInt64, {2}}});
  a.aliases.clear();
  a.Set(StateKey::ParamGroups(), std::string(R"([{"params":["net.h.0.bias"]}])"));
  StateDict b;
  for (const auto& [key, value] : a.entries()) {
    StateKey renamed = key;
    const bool has_prefix = key.section != StateKey::Section::kExtra && key.fqn.rfind("net.", 0) == 0;
    if (has_prefix) renamed.fqn = "module.model." + key.fqn.substr(4);
    b.Set(renamed, value);
  }
  b.Set(StateKey::ParamGroups(), std::string(R"([{"params":["module.model.h.0.bias"]}])"));
  const DiffReport equal = Compare(*Write(a), *Write(b));
  EXPECT_FALSE(equal.equal());
  EXPECT_THAT(equal.structure, IsEmpty());
  EXPECT_EQ(equal.renamed.prefix_a, "net.");
  EXPECT_EQ(equal.renamed.prefix_b, "module.model.");
  EXPECT_EQ(equal.renamed.compared, 3);
  EXPECT_EQ(equal.renamed.total.numel, 15 + 7 + 7);
  EXPECT_EQ(equal.renamed.total.changed, 0);
  EXPECT_EQ(equal.compared, 1);
  EXPECT_EQ(equal.only_in_a.size(), 3);
  EXPECT_EQ(equal.only_in_b.size(), 3);

  // The values of the helper follow from the name.
  const StateDict other = FullState({{StateKey::Model("other"), DType::kFloat32, {7}}});
  b.Set(StateKey::Model("module.model.h.0.bias"), ShardedTensor(*other.FindTensor(StateKey::Model("other"))));
  const DiffReport changed = Compare(*Write(a), *Write(b));
  EXPECT_GT(changed.renamed.total.changed, 0);
  EXPECT_FALSE(changed.renamed.tensors[1].equal());
  EXPECT_EQ(changed.renamed.tensors[1].name, "model/net.h.0.bias");
}

TEST(DiffTest, DamageIsAnErrorAndNotADifference) {
  const StateDict state = FullState(Tensors());
  const std::string path = NewTestDirectory() + "/checkpoint";
  ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), {}));
  std::string bytes = ReadFile(path + "/checkpoint.h5");
  bytes[bytes.size() / 2] ^= 1;
  WriteAll(path + "/checkpoint.h5", bytes);
  ASSERT_OK_AND_ASSIGN(const auto damaged, OpenTensorSource(path));
  EXPECT_THAT(DiffCheckpoints(*Write(state), *damaged, {}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tensor \"model/wte.weight\"")));
}

}  // namespace
}  // namespace fsdp
