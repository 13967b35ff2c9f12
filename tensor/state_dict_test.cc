// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/state_dict.h"

#include <optional>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

Tensor FloatsAt(float* data, int64_t rows, int64_t cols) {
  return Tensor(Buffer::Unowned(data, rows * cols * 4), DType::kFloat32, {rows, cols});
}

TEST(ShardedTensorTest, WholeIsOneFlatShard) {
  float data[6];
  const ShardedTensor whole = ShardedTensor::Whole(FloatsAt(data, 2, 3));
  EXPECT_EQ(whole.dtype, DType::kFloat32);
  EXPECT_EQ(whole.shape, Shape({2, 3}));
  ASSERT_EQ(whole.shards.size(), 1);
  EXPECT_EQ(whole.shards[0].interval, (Interval{0, 6}));
  EXPECT_EQ(whole.shards[0].data.shape(), Shape({6}));
  EXPECT_EQ(whole.shards[0].data.data(), data);
  EXPECT_EQ(whole.replica, 0);
}

TEST(ShardedTensorTest, NoShardIsEmpty) {
  float data[1];
  EXPECT_TRUE(ShardedTensor::Whole(FloatsAt(data, 0, 3)).shards.empty());
  const Tensor scalar(Buffer::Unowned(data, 4), DType::kFloat32, Shape());
  EXPECT_EQ(ShardedTensor::Whole(scalar).shards.at(0).interval, (Interval{0, 1}));
}

TEST(StateKeyTest, TextIsThePathInTheFile) {
  EXPECT_EQ(StateKey::Model("transformer.wte.weight").ToString(), "model/transformer.wte.weight");
  EXPECT_EQ(StateKey::OptimState("transformer.wte.weight", "exp_avg").ToString(),
            "optim/state/transformer.wte.weight/exp_avg");
  EXPECT_EQ(StateKey::ParamGroups().ToString(), "optim/param_groups");
  EXPECT_EQ(StateKey::Extra("step").ToString(), "extra/step");
}

TEST(StateKeyTest, SectionsKeepNamesApart) {
  const std::vector<StateKey> keys = {StateKey::Model("a"),
                                      StateKey::Model("b"),
                                      StateKey::OptimState("a", "exp_avg"),
                                      StateKey::OptimState("a", "step"),
                                      StateKey::ParamGroups(),
                                      StateKey::Extra("a")};
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < keys.size(); ++j) {
      EXPECT_EQ(keys[i] == keys[j], i == j);
      EXPECT_EQ(keys[i] < keys[j], i < j);
    }
  }
}

TEST(StateDictTest, KeepsTheOrderOfInsertion) {
  StateDict state;
  EXPECT_TRUE(state.empty());
  state.Set(StateKey::Model("z"), "1");
  state.Set(StateKey::Model("a"), "2");
  state.Set(StateKey::Extra("step"), "3");
  state.Set(StateKey::Model("z"), "4");
  std::vector<std::string> order;
  for (const auto& [key, value] : state.entries()) order.push_back(key.ToString() + "=" + std::get<std::string>(value));
  EXPECT_THAT(order, testing::ElementsAre("model/z=4", "model/a=2", "extra/step=3"));
}

TEST(StateDictTest, FindsByKeyAndKind) {
  float data[6];
  StateDict state;
  state.Set(StateKey::Model("w"), ShardedTensor::Whole(FloatsAt(data, 2, 3)));
  state.Set(StateKey::ParamGroups(), "[]");
  ASSERT_NE(state.FindTensor(StateKey::Model("w")), nullptr);
  EXPECT_EQ(state.FindTensor(StateKey::Model("w"))->shape, Shape({2, 3}));
  EXPECT_EQ(state.FindText(StateKey::Model("w")), nullptr);
  EXPECT_EQ(*state.FindText(StateKey::ParamGroups()), "[]");
  EXPECT_EQ(state.FindTensor(StateKey::ParamGroups()), nullptr);
  EXPECT_EQ(state.FindTensor(StateKey::Extra("w")), nullptr);
  EXPECT_FALSE(state.contains(StateKey::Model("v")));
  EXPECT_TRUE(state.contains(StateKey::Model("w")));
}

TEST(StateDictTest, ResolvesASharedParameterByTheAliasesOfEitherState) {
  StateDict state;
  state.Set(StateKey::Model("wte"), "1");
  state.Set(StateKey::OptimState("wte", "exp_avg"), "2");
  state.aliases = {{"head", "wte"}, {"dangling", "absent"}};
  EXPECT_EQ(state.Resolve(StateKey::Model("wte")), StateKey::Model("wte"));
  EXPECT_EQ(state.Resolve(StateKey::Model("head")), StateKey::Model("wte"));
  EXPECT_EQ(state.Resolve(StateKey::OptimState("head", "exp_avg")), StateKey::OptimState("wte", "exp_avg"));
  EXPECT_EQ(state.Resolve(StateKey::OptimState("head", "exp_avg_sq")), std::nullopt);
  EXPECT_EQ(state.Resolve(StateKey::Model("dangling")), std::nullopt);
  EXPECT_EQ(state.Resolve(StateKey::Model("shared")), std::nullopt);
  EXPECT_EQ(state.Resolve(StateKey::Model("shared"), {{"wte", "shared"}}), StateKey::Model("wte"));
  EXPECT_EQ(state.Resolve(StateKey::Model("dangling"), {{"wte", "dangling"}}), StateKey::Model("wte"));
  EXPECT_EQ(state.Resolve(StateKey::Extra("head")), std::nullopt) << "aliases are of parameters";
}

TEST(StateDictTest, ACopyIsIndependentButSharesBytes) {
  float data[6];
  StateDict state;
  state.Set(StateKey::Model("w"), ShardedTensor::Whole(FloatsAt(data, 2, 3)));
  StateDict copy = state;
  copy.Set(StateKey::Model("w"), "replaced");
  EXPECT_EQ(state.FindTensor(StateKey::Model("w"))->shards[0].data.data(), data);
}

TEST(StateDictTypeTest, NamesParseBack) {
  for (StateDictType type : {StateDictType::kFull, StateDictType::kLocal, StateDictType::kSharded}) {
    EXPECT_THAT(ParseStateDictType(StateDictTypeName(type)), IsOkAndHolds(type));
  }
  EXPECT_EQ(StateDictTypeName(StateDictType::kSharded), "sharded");
  EXPECT_THAT(ParseStateDictType("Full"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   "unknown state dict type \"Full\"; known: full, local, sharded"));
}

// The table of places grows several times on the way, and each copy has its own table.
TEST(StateDictTest, EveryKeyOfManyIsFoundAtItsPlaceAndNoOther) {
  constexpr size_t kKeys = 3000;
  const auto key_of = [](size_t i) {
    const std::string fqn = "layers." + std::to_string(i / 3);
    return i % 3 == 0 ? StateKey::Model(fqn) : i % 3 == 1 ? StateKey::Extra(fqn) : StateKey::OptimState(fqn, "exp_avg");
  };
  StateDict state;
  EXPECT_EQ(state.IndexOf(key_of(0)), std::nullopt);
  for (size_t i = 0; i < kKeys; ++i) state.Set(key_of(i), std::to_string(i));
  const StateDict copy = state;
  state.Set(key_of(5), "replaced");
  state.Set(StateKey::ParamGroups(), "[]");
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(state.IndexOf(key_of(i)), i);
    ASSERT_EQ(*copy.FindText(key_of(i)), std::to_string(i));
  }
  EXPECT_EQ(*state.FindText(key_of(5)), "replaced");
  EXPECT_EQ(state.entries().size(), kKeys + 1);
  EXPECT_FALSE(copy.contains(StateKey::ParamGroups()));
  EXPECT_FALSE(state.contains(key_of(kKeys)));
}

}  // namespace
}  // namespace fsdp
