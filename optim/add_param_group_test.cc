// SPDX-License-Identifier: Apache-2.0
//
// Groups that are added to an optimizer, before its first step and later.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class AddParamGroupTest : public OptimizerFixture {
 protected:
  // Three parameters with equal values in every call.
  struct Parameters {
    std::vector<std::unique_ptr<ShardedParameter>> all;
    ShardedParameter* operator[](size_t i) const { return all[i].get(); }
  };

  Parameters Make() {
    Parameters parameters;
    for (const int64_t numel : {75, 33, 5}) {
      const int seed = static_cast<int>(numel);
      parameters.all.push_back(MakeParameter(*device_, std::to_string(numel), numel, 1));
      Set(parameters.all.back()->data, Random(numel, seed));
      SetGrad(*parameters.all.back(), Random(numel, seed + 1));
    }
    return parameters;
  }

  void Step(Optimizer& optimizer, int times) {
    for (int i = 0; i < times; ++i) ASSERT_OK(optimizer.Step(*stream_));
    ASSERT_OK(stream_->Synchronize());
  }

  // Adds a group after `before` steps and expects the bits of two optimizers, one for each group.
  template <typename OptimizerType, typename Options>
  void ExpectIsUpdatedAsByItsOwn(const Options& first, const Options& second, int before) {
    const Parameters joined = Make(), apart = Make();
    OptimizerType both({joined[0]}, first);
    Step(both, before);
    ASSERT_OK(both.AddParamGroup({{joined[1], joined[2]}, second}));
    Step(both, 2);
    OptimizerType one({apart[0]}, first), other({apart[1], apart[2]}, second);
    Step(one, before + 2);
    Step(other, 2);
    for (size_t i = 0; i < 3; ++i) {
      ExpectSameBits(joined[i]->data, Get(apart[i]->data));
      Optimizer& its = i == 0 ? static_cast<Optimizer&>(one) : other;
      const size_t index = i == 0 ? 0 : i - 1;
      EXPECT_EQ(both.step_count(i), its.step_count(index));
      for (const std::string& name : its.state_names()) {
        ASSERT_OK_AND_ASSIGN(const Tensor state, both.State(i, name));
        ASSERT_OK_AND_ASSIGN(const Tensor expected, its.State(index, name));
        ExpectSameBits(state, Get(expected));
      }
    }
    const std::vector<ParamGroupState> groups = both.ParamGroups();
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_THAT(groups[1].params, ElementsAre("33", "5"));
    EXPECT_EQ(groups[1].values[0].second, second.lr);
  }
};

TEST_F(AddParamGroupTest, ItIsUpdatedAsByAnOptimizerOfItsOwn) {
  for (const int before : {0, 1, 3}) {
    ExpectIsUpdatedAsByItsOwn<AdamW>(AdamWOptions{.lr = 0.1}, AdamWOptions{.lr = 0.01, .weight_decay = 0}, before);
    ExpectIsUpdatedAsByItsOwn<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.5}, SgdOptions{.lr = 0.01}, before);
    ExpectIsUpdatedAsByItsOwn<Sgd>(SgdOptions{.lr = 0.1}, SgdOptions{.lr = 0.01}, before);
    ExpectIsUpdatedAsByItsOwn<Lion>(LionOptions{.lr = 0.1}, LionOptions{.lr = 0.01, .weight_decay = 0.5}, before);
  }
}

TEST_F(AddParamGroupTest, AParameterOfTwoGroupsIsNamedAndNothingIsAdded) {
  const Parameters parameters = Make();
  AdamW optimizer({parameters[0]}, AdamWOptions{});
  for (const std::vector<ShardedParameter*>& twice :
       {std::vector{parameters[1], parameters[0]}, std::vector{parameters[1], parameters[1]}}) {
    EXPECT_THAT(optimizer.AddParamGroup({twice, {}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("AdamW: parameter \"" + twice[1]->fqn + "\" is in two param groups")));
  }
  EXPECT_THAT(optimizer.AddParamGroup({{parameters[1]}, {.lr = -1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AdamW, param group 1: lr is -1")));
  EXPECT_EQ(optimizer.ParamGroups().size(), 1u);
  EXPECT_EQ(optimizer.parameters().size(), 1u);
}

TEST_F(AddParamGroupTest, AGroupThatTheOptimizerHasNoMemoryForIsRefused) {
  const Parameters parameters = Make();
  Sgd without({parameters[0]}, SgdOptions{});
  EXPECT_THAT(without.AddParamGroup({{parameters[1]}, {.momentum = 0.5}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was made without momentum")));
  EXPECT_OK(without.AddParamGroup({{parameters[1]}, {}}));
  AdamW captured({parameters[0]}, AdamWOptions{});
  ASSERT_OK(captured.CopyScalarsToDevice(*stream_));
  EXPECT_THAT(captured.AddParamGroup({{parameters[1]}, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a captured step would leave it out")));
  ASSERT_OK(stream_->Synchronize());
}

}  // namespace
}  // namespace fsdp
