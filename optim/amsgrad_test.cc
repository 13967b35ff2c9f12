// SPDX-License-Identifier: Apache-2.0
//
// AdamW's options that decide about its states and its formula: amsgrad and decoupled_weight_decay, by group.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

class AmsgradTest : public OptimizerFixture {
 protected:
  std::unique_ptr<ShardedParameter> Make(const std::string& fqn, int seed, DType dtype = DType::kFloat32) {
    auto parameter = MakeParameter(*device_, fqn, 75, 3, dtype);
    Set(parameter->data, Random(75, seed));
    SetGrad(*parameter, Random(75, seed + 1));
    return parameter;
  }

  void Step(Optimizer& optimizer) {
    ASSERT_OK(optimizer.Step(*stream_));
    ASSERT_OK(stream_->Synchronize());
  }
};

TEST_F(AmsgradTest, ItsStateIsTheLargestMeanOfSquares) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto parameter = Make("w", 1, dtype);
    AdamW optimizer({parameter.get()}, {.beta2 = 0.5, .amsgrad = true});
    Floats largest(75, 0);
    for (const float size : {1.0f, 3.0f, 0.25f}) {
      Floats gradient = Random(75, 2);
      for (float& g : gradient) g *= size;
      SetGrad(*parameter, gradient);
      Step(optimizer);
      const Floats v = Get(*optimizer.State(0, "exp_avg_sq"));
      for (size_t i = 0; i < v.size(); ++i) largest[i] = std::max(largest[i], v[i]);
      ExpectSameBits(*optimizer.State(0, "max_exp_avg_sq"), largest);
    }
    EXPECT_NE(Get(*optimizer.State(0, "exp_avg_sq")), largest) << "the mean fell";
  }
}

TEST_F(AmsgradTest, OnlyItsGroupHasItsState) {
  const auto with = Make("with", 1), without = Make("without", 1), added = Make("added", 1), alone = Make("alone", 1);
  AdamW optimizer({{{with.get()}, {.amsgrad = true}}, {{without.get()}, {}}});
  ASSERT_OK(optimizer.AddParamGroup({{added.get()}, {.amsgrad = true}}));
  AdamW plain({alone.get()}, {});
  Step(optimizer);
  Step(plain);
  EXPECT_THAT(optimizer.StateNamesOf(0), ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(optimizer.StateNamesOf(1), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(optimizer.StateNamesOf(2), ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(optimizer.State(1, "max_exp_avg_sq"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"without\" has no optimizer state \"max_exp_avg_sq\"")));
  ExpectSameBits(without->data, Get(alone->data));
  ExpectSameBits(*optimizer.State(2, "max_exp_avg_sq"), Get(*optimizer.State(0, "max_exp_avg_sq")));
  EXPECT_THAT(plain.AddParamGroup({{added.get()}, {.amsgrad = true}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("made without amsgrad")));
}

TEST_F(AmsgradTest, DecayOfAdamIsAPartOfTheGradient) {
  const auto decayed = Make("a", 1), added = Make("b", 1);
  AdamW adam({decayed.get()}, {.weight_decay = 0.5, .decoupled_weight_decay = false});
  AdamW plain({added.get()}, {.weight_decay = 0});
  Floats gradient = GradOf(*added);
  const Floats values = Get(added->data);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += 0.5f * values[i];
  SetGrad(*added, gradient);
  Step(adam);
  Step(plain);
  ExpectSameBits(decayed->data, Get(added->data));
  ExpectSameBits(*adam.State(0, "exp_avg"), Get(*plain.State(0, "exp_avg")));
}

// A state dict of the default is as it was before the options existed, and one of another value is never dropped.
TEST_F(AmsgradTest, WhatItWasMadeWithIsInItsGroupsAndFixed) {
  const auto parameter = Make("w", 1);
  const AdamW adam({parameter.get()}, {.amsgrad = true, .decoupled_weight_decay = false});
  const AdamW amsgrad({parameter.get()}, {.amsgrad = true});
  EXPECT_THAT(amsgrad.ParamGroups()[0].values, Contains(Pair("decoupled_weight_decay", 1))) << "no Adam";
  EXPECT_THAT(adam.ParamGroups()[0].values, Contains(Pair("amsgrad", 1)));
  EXPECT_THAT(adam.ParamGroups()[0].values, Contains(Pair("decoupled_weight_decay", 0)));
  EXPECT_OK(adam.CheckHyperparameter(0, "amsgrad", 1));
  AdamW adamw({parameter.get()}, {});
  EXPECT_THAT(adamw.ParamGroups()[0].values, Not(Contains(Pair("amsgrad", testing::_))));
  EXPECT_THAT(adamw.SetHyperparameter("amsgrad", 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("AdamW, param group 0: amsgrad is false, not true, and fixed")));
  EXPECT_THAT(
      adamw.SetHyperparameter("decoupled_weight_decay", 0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("decoupled_weight_decay is true, not false, and fixed")));
}

}  // namespace
}  // namespace fsdp
