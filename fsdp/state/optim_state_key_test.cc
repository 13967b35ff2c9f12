// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/optim_state_key.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/state/optim_param_groups.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class OptimStateKeyTest : public testing::Test {
 protected:
  // Names out of alphabetical order, in two groups: b is parameter 0, c 1, a 2.
  OptimStateKeyTest() {
    for (const char* name : {"b", "c", "a"}) {
      auto parameter = std::make_unique<ShardedParameter>();
      parameter->fqn = name;
      parameter->shape = {2};
      parameter->interval = {0, 2};
      parameter->device = device_.get();
      parameters_.push_back(std::move(parameter));
    }
    adamw_ = std::make_unique<AdamW>(std::vector<AdamW::Group>{
        {{parameters_[0].get(), parameters_[1].get()}, {.lr = 0.5}}, {{parameters_[2].get()}, {.lr = 0.25}}});
    for (const char* name : {"a", "b", "c"}) {
      ShardedTensor value;
      value.shape = {static_cast<int64_t>(name[0])};  // to tell them apart
      named_.Set(StateKey::OptimState(name, "exp_avg"), value);
    }
    named_.Set(StateKey::ParamGroups(), Groups());
    named_.Set(StateKey::Extra("step"), "7");
  }

  std::string Groups() const { return *WithParamGroups(nullptr, *adamw_); }

  absl::Status Load(const std::string& groups) {
    return SavedParamGroups(groups, *adamw_).Load(/*strict=*/true, *adamw_);
  }

  std::shared_ptr<Device> device_ = CreateHostDevice();
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  std::unique_ptr<AdamW> adamw_;
  StateDict named_;
};

std::vector<std::string> Keys(const StateDict& state) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : state.entries()) keys.push_back(key.ToString());
  return keys;
}

TEST_F(OptimStateKeyTest, IdsCountTheOptimizersParametersOverItsGroups) {
  ASSERT_OK_AND_ASSIGN(const StateDict by_id, RekeyOptimStateDict(named_, OptimStateKeyType::kParamId, *adamw_));
  EXPECT_THAT(Keys(by_id), ElementsAre("optim/param_groups", "extra/step", "optim/state/0/exp_avg",
                                       "optim/state/1/exp_avg", "optim/state/2/exp_avg"));
  EXPECT_EQ(by_id.FindTensor(StateKey::OptimState("2", "exp_avg"))->shape, Shape({'a'}));
  const auto groups = nlohmann::json::parse(*by_id.FindText(StateKey::ParamGroups()));
  EXPECT_EQ(groups[0]["params"], nlohmann::json({0, 1}));
  EXPECT_EQ(groups[1]["params"], nlohmann::json({2}));
  EXPECT_EQ(groups[1]["lr"], 0.25);
}

TEST_F(OptimStateKeyTest, NamesComeBackFromIds) {
  ASSERT_OK_AND_ASSIGN(const StateDict by_id, RekeyOptimStateDict(named_, OptimStateKeyType::kParamId, *adamw_));
  ASSERT_OK_AND_ASSIGN(const StateDict again, RekeyOptimStateDict(by_id, OptimStateKeyType::kParamName, *adamw_));
  for (const auto& [key, value] : named_.entries()) EXPECT_TRUE(again.contains(key)) << key.ToString();
  EXPECT_EQ(again.FindTensor(StateKey::OptimState("c", "exp_avg"))->shape, Shape({'c'}));
  EXPECT_EQ(*again.FindText(StateKey::ParamGroups()), *named_.FindText(StateKey::ParamGroups()));
}

TEST_F(OptimStateKeyTest, AStateWithTheRequestedKeysIsReturnedUnchanged) {
  named_.Set(StateKey::OptimState("z", "exp_avg"), ShardedTensor());  // which the optimizer does not have
  ASSERT_OK_AND_ASSIGN(const StateDict same, RekeyOptimStateDict(named_, OptimStateKeyType::kParamName, *adamw_));
  EXPECT_EQ(Keys(same), Keys(named_));
}

TEST_F(OptimStateKeyTest, NamesAndIdsTogetherAreRefused) {
  named_.Set(StateKey::OptimState("1", "exp_avg"), ShardedTensor());
  EXPECT_THAT(RekeyOptimStateDict(named_, OptimStateKeyType::kParamId, *adamw_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names or by ids throughout, but has \"c\"")));
}

TEST_F(OptimStateKeyTest, ParametersThatTheOptimizerLacksAreNamed) {
  named_.Set(StateKey::OptimState("z", "exp_avg"), ShardedTensor());
  EXPECT_THAT(RekeyOptimStateDict(named_, OptimStateKeyType::kParamId, *adamw_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"z\": the optimizer has no parameter")));
  StateDict by_id;
  by_id.Set(StateKey::OptimState("3", "exp_avg"), ShardedTensor());
  EXPECT_THAT(RekeyOptimStateDict(by_id, OptimStateKeyType::kParamName, *adamw_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("id 3: the optimizer has 3 parameters")));
}

TEST_F(OptimStateKeyTest, StateByIdsMustBeRekeyedBeforeALoad) {
  ASSERT_OK_AND_ASSIGN(const StateDict by_id, RekeyOptimStateDict(named_, OptimStateKeyType::kParamId, *adamw_));
  EXPECT_OK(CheckKeyedByName(named_, *adamw_));
  EXPECT_THAT(CheckKeyedByName(by_id, *adamw_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("RekeyOptimStateDict")));
}

TEST_F(OptimStateKeyTest, ParamGroupsAreLoadedGroupByGroup) {
  auto groups = nlohmann::json::parse(Groups());
  groups[0]["lr"] = 3.0;
  groups[1]["betas"] = {0.5, 0.75};
  groups[1].erase("eps");
  EXPECT_OK(Load(groups.dump()));
  const auto after = nlohmann::json::parse(Groups());
  EXPECT_EQ(after[0]["lr"], 3.0);
  EXPECT_EQ(after[1]["lr"], 0.25);
  EXPECT_EQ(after[1]["betas"], nlohmann::json({0.5, 0.75}));
  EXPECT_EQ(after[1]["eps"], 1e-8);
}

TEST_F(OptimStateKeyTest, ParamGroupsOfOtherParametersAreRefusedByName) {
  auto groups = nlohmann::json::parse(Groups());
  groups[0]["params"] = {"b", "z"};
  EXPECT_THAT(Load(groups.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group 0 of the state dict has \"z\"")));
  groups[0]["params"] = {"b"};
  EXPECT_THAT(Load(groups.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group 0 of the state dict lacks \"c\"")));
  EXPECT_THAT(Load("[]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 groups in the state dict, 2 groups")));
}

TEST_F(OptimStateKeyTest, AHyperparameterThatIsNoNumberChangesNothing) {
  auto groups = nlohmann::json::parse(Groups());
  groups[0]["lr"] = 3.0;
  groups[1]["lr"] = "fast";
  EXPECT_THAT(Load(groups.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"lr\" of group 1 is \"fast\", not a number")));
  EXPECT_EQ(nlohmann::json::parse(Groups())[0]["lr"], 0.5);
}

}  // namespace
}  // namespace fsdp
