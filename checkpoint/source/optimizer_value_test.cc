// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/optimizer_value.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

template <typename T>
T ValueOf(const ScalarOfText& scalar) {
  T value = {};
  EXPECT_EQ(scalar.bytes.size(), sizeof(value));
  std::memcpy(&value, scalar.bytes.data(), std::min(sizeof(value), scalar.bytes.size()));
  return value;
}

TEST(OptimizerValueTest, TheExtraValueOfAStateIsFoundByItsName) {
  const StateKey key = ExtraOfState("a/b.weight", "GG.[1]");
  EXPECT_EQ(key.ToString(), "extra/optim/state/a/b.weight/GG.[1]");
  EXPECT_EQ(StateOfKey(key)->fqn, "a/b.weight");
  EXPECT_EQ(StateOfKey(key)->path, "GG.[1]");
  EXPECT_EQ(StateOfKey(StateKey::OptimState("w", "step"))->path, "step");
  for (const char* path : {"a/b", "%", "%2F", "%252F/%2E", "/"}) {
    const StateKey odd = ExtraOfState("w/", path);
    EXPECT_EQ(StateOfKey(odd)->path, path);
    EXPECT_EQ(StateOfKey(odd)->fqn, "w/");
  }
  for (const char* name : {"step", "optim/state/", "optim/state/w", "optim/state/w/", "optim/state//x"}) {
    EXPECT_FALSE(StateOfKey(StateKey::Extra(name)).has_value()) << name;
  }
  EXPECT_FALSE(StateOfKey(StateKey::Model("optim/state/w/x")).has_value());
}

TEST(OptimizerValueTest, ANumberIsAScalarTensor) {
  EXPECT_EQ(ScalarOfState("k", "-7")->dtype, DType::kInt64);
  EXPECT_EQ(ValueOf<int64_t>(*ScalarOfState("k", "-7")), -7);
  EXPECT_EQ(ValueOf<int64_t>(*ScalarOfState("k", "9223372036854775807")), INT64_MAX);
  EXPECT_EQ(ScalarOfState("mu", "1.0")->dtype, DType::kFloat64);
  EXPECT_EQ(ValueOf<double>(*ScalarOfState("mu", "1e-05")), 1e-5);
  EXPECT_EQ(ScalarOfState("on", "true")->dtype, DType::kBool);
  EXPECT_EQ(ValueOf<uint8_t>(*ScalarOfState("on", "true")), 1);
  EXPECT_EQ(ValueOf<uint8_t>(*ScalarOfState("on", "false")), 0);
}

TEST(OptimizerValueTest, AStepIsFloat32IfThatHoldsIt) {
  EXPECT_EQ(ScalarOfState("step", "16777216")->dtype, DType::kFloat32);
  EXPECT_EQ(ValueOf<float>(*ScalarOfState("step", "7")), 7);
  EXPECT_EQ(ValueOf<float>(*ScalarOfState("step", "7.5")), 7.5F);
  EXPECT_EQ(ScalarOfState("step", "16777217")->dtype, DType::kInt64);
  EXPECT_EQ(ScalarOfState("step", "-1")->dtype, DType::kInt64);
  EXPECT_EQ(ScalarOfState("step", "0.1")->dtype, DType::kFloat64);
}

TEST(OptimizerValueTest, OtherTextsAreNoScalar) {
  for (const char* text : {"", " 7", "7 ", "+7", "nf4", "\"7\"", "null", "[7]", "nan", "inf", "1e999", "0x10", "-", "e",
                           "9223372036854775808x"}) {
    EXPECT_FALSE(ScalarOfState("step", text).has_value()) << text;
  }
  // Beyond 64 bits an integer is no tensor, and must not become a double.
  EXPECT_FALSE(ScalarOfState("k", "18446744073709551616").has_value());
}

TEST(OptimizerValueTest, TextsOfAStateGoNextToItsTensors) {
  StateDict state;
  for (const char* name : {"w", "b"}) {
    state.Set(StateKey::OptimState(name, "exp_avg"), ShardedTensor());
    state.Set(StateKey::OptimState(name, "exp_avg_sq"), ShardedTensor());
  }
  state.aliases["v"] = "w";
  const StateDict same = WithValuesInPlace(state);
  EXPECT_EQ(same.entries().size(), 4);
  for (const char* name : {"w", "b", "only_numbers"}) {
    state.Set(ExtraOfState(name, "mu"), "0.5");
    state.Set(ExtraOfState(name, "step"), "3");
  }
  state.Set(StateKey::Extra("epoch"), "2");
  const StateDict ordered = WithValuesInPlace(state);
  std::string keys;
  for (const auto& [key, value] : ordered.entries()) keys += key.ToString() + " ";
  EXPECT_EQ(keys,
            "extra/optim/state/w/step optim/state/w/exp_avg optim/state/w/exp_avg_sq extra/optim/state/w/mu "
            "extra/optim/state/b/step optim/state/b/exp_avg optim/state/b/exp_avg_sq extra/optim/state/b/mu "
            "extra/optim/state/only_numbers/mu extra/optim/state/only_numbers/step extra/epoch ");
  EXPECT_EQ(ordered.aliases, state.aliases);
}

TEST(OptimizerValueTest, AScalarIsFoundAmongTheTextsOfAState) {
  StateDict state;
  state.Set(ExtraOfState("w", "step"), "3");
  state.Set(ExtraOfState("w", "mode"), "nf4");
  EXPECT_EQ(ValueOf<float>(*FindScalarOfState(state, "w", "step")), 3);
  EXPECT_FALSE(FindScalarOfState(state, "w", "mode").has_value());
  EXPECT_FALSE(FindScalarOfState(state, "b", "step").has_value());
}

}  // namespace
}  // namespace fsdp
