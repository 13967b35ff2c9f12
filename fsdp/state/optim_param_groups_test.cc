// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/optim_param_groups.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Parameters a to f; no optimizer steps, so they need no memory.
class ParamGroupsTest : public testing::Test {
 protected:
  ParamGroupsTest() {
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      parameters_.push_back(std::make_unique<ShardedParameter>());
      parameters_.back()->fqn = name;
    }
  }

  std::vector<ShardedParameter*> Of(const std::string& names) const {
    std::vector<ShardedParameter*> some;
    for (const char name : names) some.push_back(parameters_[name - 'a'].get());
    return some;
  }

  Sgd OfSgd(const std::string& names, double lr) const { return Sgd(Of(names), {.lr = lr}); }

  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
};

double LrOf(const Optimizer& optimizer, size_t group = 0) { return optimizer.ParamGroups()[group].values[0].second; }

TEST_F(ParamGroupsTest, OfOneOptimizerHaveNoName) {
  EXPECT_EQ(*WithParamGroups(nullptr, AdamW(Of("ab"), {.lr = 0.5})),
            R"([{"params":["a","b"],"lr":0.5,"betas":[0.9,0.999],"eps":1e-08,"weight_decay":0.01}])");
  EXPECT_EQ(*WithParamGroups(nullptr, OfSgd("c", 0.25)),
            R"([{"params":["c"],"lr":0.25,"momentum":0.0,"dampening":0.0,"weight_decay":0.0,"nesterov":false}])");
}

TEST_F(ParamGroupsTest, HaveAFlagThatIsNotItsDefault) {
  const AdamW adam(Of("a"), {.lr = 0.5, .amsgrad = true, .decoupled_weight_decay = false});
  EXPECT_EQ(*WithParamGroups(nullptr, adam),
            R"([{"params":["a"],"lr":0.5,"betas":[0.9,0.999],"eps":1e-08,"weight_decay":0.01,"amsgrad":true,)"
            R"("decoupled_weight_decay":false}])");
}

TEST_F(ParamGroupsTest, HaveTheSeedOfStochasticRounding) {
  Sgd optimizer = OfSgd("c", 0.25), other = OfSgd("c", 0.5);
  EXPECT_OK(optimizer.set_bf16_stochastic_round(uint64_t{1} << 53));
  const std::string groups = *WithParamGroups(nullptr, optimizer);
  EXPECT_THAT(groups, HasSubstr(R"("bf16_stochastic_round":true,"rounding_seed":9007199254740992)"));
  EXPECT_OK(SavedParamGroups(groups, other).Load(/*strict=*/true, other));
  EXPECT_EQ(other.bf16_stochastic_round(), uint64_t{1} << 53);
}

TEST_F(ParamGroupsTest, HaveAListWithNoneForPyTorchsNone) {
  Adafactor optimizer(Of("a"), {});
  const std::string groups = *WithParamGroups(nullptr, optimizer);
  EXPECT_EQ(groups, R"([{"params":["a"],"lr":0.01,"beta2_decay":-0.8,"eps":[null,0.001],"d":1.0,"weight_decay":0.0}])");
  EXPECT_OK(optimizer.SetHyperparameter("eps1", 0.5));
  EXPECT_THAT(*WithParamGroups(nullptr, optimizer), HasSubstr(R"("eps":[0.5,0.001])"));
  EXPECT_OK(SavedParamGroups(groups, optimizer).Load(/*strict=*/true, optimizer));
  EXPECT_EQ(*WithParamGroups(nullptr, optimizer), groups);
}

TEST_F(ParamGroupsTest, HaveMuonsListsIntegersAndNames) {
  Muon optimizer(Of("a"), {.adjust_lr_fn = AdjustLr::kMatchRmsAdamw});
  const std::string groups = *WithParamGroups(nullptr, optimizer);
  EXPECT_EQ(groups, R"([{"params":["a"],"lr":0.001,"weight_decay":0.1,"momentum":0.95,"nesterov":true,)"
                    R"("ns_coefficients":[3.4445,-4.775,2.0315],"eps":1e-07,"ns_steps":5,)"
                    R"("adjust_lr_fn":"match_rms_adamw"}])");
  Muon other(Of("a"), {.lr = 1, .nesterov = false, .ns_coefficients = {1, 2, 3}, .ns_steps = 9});
  EXPECT_OK(SavedParamGroups(groups, other).Load(/*strict=*/true, other));
  EXPECT_EQ(*WithParamGroups(nullptr, other), groups);
  const std::string of_a_tuple = R"([{"params":["a"],"ns_coefficients":{"__python__":"tuple","items":[3.5,-4.5,2]}}])";
  EXPECT_OK(SavedParamGroups(of_a_tuple, other).Load(/*strict=*/true, other));
  EXPECT_THAT(*WithParamGroups(nullptr, other), HasSubstr(R"("ns_coefficients":[3.5,-4.5,2.0])"));
  const std::string of_none = R"([{"params":["a"],"adjust_lr_fn":null}])";
  EXPECT_OK(SavedParamGroups(of_none, other).Load(/*strict=*/true, other));
  EXPECT_THAT(*WithParamGroups(nullptr, other), HasSubstr(R"("adjust_lr_fn":"original")"));
  const std::string of_another = R"([{"params":["a"],"adjust_lr_fn":"mine"}])";
  EXPECT_THAT(SavedParamGroups(of_another, other).Load(/*strict=*/true, other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"adjust_lr_fn\" of group 0 is \"mine\"")));
}

// PyTorch's state dicts have all of them. One that decides which states there are must be the optimizer's own.
TEST_F(ParamGroupsTest, OfAnotherFormulaAreRefusedByTheNameOfTheFlag) {
  AdamW adamw(Of("a"), {.lr = 0.5});
  const auto load = [&](const std::string& flags) {
    const std::string groups = R"([{"params":["a"],"lr":0.25,)" + flags + "}]";
    return SavedParamGroups(groups, adamw).Load(/*strict=*/false, adamw);
  };
  EXPECT_THAT(load(R"("amsgrad":true)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("param_groups: AdamW, param group 0: amsgrad is false, not true")));
  EXPECT_THAT(load(R"("decoupled_weight_decay":false)"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("decoupled_weight_decay is true, not false")));
  EXPECT_EQ(LrOf(adamw), 0.5) << "nothing is changed";
  EXPECT_OK(load(R"("amsgrad":false,"maximize":false,"decoupled_weight_decay":true)"));
  EXPECT_EQ(LrOf(adamw), 0.25);
}

TEST_F(ParamGroupsTest, AreReplacedInTheirPlaceAndMayGrow) {
  std::string groups = *WithParamGroups(nullptr, OfSgd("a", 1));
  groups = *WithParamGroups(&groups, OfSgd("b", 2));
  const std::string two = groups;
  groups = *WithParamGroups(&groups, OfSgd("a", 1));
  EXPECT_EQ(groups, two);
  groups = *WithParamGroups(&groups, OfSgd("ca", 3));
  Sgd first = OfSgd("ac", 0), second = OfSgd("b", 0);
  EXPECT_OK(SavedParamGroups(groups, first).Load(/*strict=*/true, first));
  EXPECT_OK(SavedParamGroups(groups, second).Load(/*strict=*/true, second));
  EXPECT_EQ(LrOf(first), 3);
  EXPECT_EQ(LrOf(second), 2);
}

TEST_F(ParamGroupsTest, OfAnotherOptimizerWithACommonParameterAreRefused) {
  const std::string groups = *WithParamGroups(nullptr, OfSgd("ab", 1));
  for (const char* names : {"a", "bc"}) {
    EXPECT_THAT(WithParamGroups(&groups, OfSgd(names, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string("parameter \"") + names[0] + "\" is already in the state dict")));
  }
  const std::string more = *WithParamGroups(&groups, OfSgd("c", 1));
  EXPECT_THAT(WithParamGroups(&more, OfSgd("abc", 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"c\" is already in the state dict as another "
                                                                     "optimizer's (\"1\")")));
}

TEST_F(ParamGroupsTest, OfTwoOptimizersWithOneNameAreRefused) {
  Sgd first = OfSgd("a", 1), second = OfSgd("b", 1);
  first.set_name("muon");
  second.set_name("muon");
  const std::string groups = *WithParamGroups(nullptr, first);
  EXPECT_THAT(WithParamGroups(&groups, second),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another optimizer \"muon\"")));
  EXPECT_OK(WithParamGroups(&groups, first));
}

TEST_F(ParamGroupsTest, ThatAreNoListTakeNoOptimizer) {
  const std::string text = "{}";
  EXPECT_THAT(WithParamGroups(&text, OfSgd("a", 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no JSON array, so no optimizer can be added")));
}

TEST_F(ParamGroupsTest, AreLoadedByNameOrElseByParameters) {
  Sgd muon = OfSgd("ab", 1);
  muon.set_name("muon");
  std::string groups = *WithParamGroups(nullptr, muon);
  groups = *WithParamGroups(&groups, OfSgd("c", 2));
  groups = *WithParamGroups(&groups, OfSgd("d", 3));
  Sgd of_c = OfSgd("c", 0), of_d = OfSgd("d", 0), unnamed = OfSgd("ba", 0), fewer = OfSgd("a", 0);
  for (Sgd* optimizer : {&of_c, &of_d, &unnamed}) {
    EXPECT_OK(SavedParamGroups(groups, *optimizer).Load(/*strict=*/true, *optimizer));
  }
  EXPECT_EQ(LrOf(of_c), 2);
  EXPECT_EQ(LrOf(of_d), 3);
  EXPECT_EQ(LrOf(unnamed), 1);
  EXPECT_TRUE(SavedParamGroups(groups, of_c).IsOfAnother("a"));
  EXPECT_FALSE(SavedParamGroups(groups, of_c).IsOfAnother("c"));
  EXPECT_FALSE(SavedParamGroups(groups, of_c).IsOfAnother("f"));
  EXPECT_FALSE(SavedParamGroups(groups, fewer).IsOfAnother("b")) << "a parameter that muon had";
  Sgd renamed = OfSgd("ef", 0);
  renamed.set_name("muon");
  EXPECT_THAT(SavedParamGroups(groups, renamed).Load(/*strict=*/true, renamed),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group 0 of the state dict has \"a\"")));
}

TEST_F(ParamGroupsTest, ThatDifferAreMatchedByParametersUnlessTheLoadIsStrict) {
  const Sgd saved(std::vector<Sgd::Group>{{Of("ab"), {.lr = 1}}, {Of("cd"), {.lr = 2}}, {Of("e"), {.lr = 1}}});
  const std::string groups = *WithParamGroups(nullptr, saved);
  Sgd other(std::vector<Sgd::Group>{{Of("c"), {.lr = 5}}, {Of("ae"), {.lr = 6}}, {Of("f"), {.lr = 7}}});
  EXPECT_THAT(SavedParamGroups(groups, other).Load(/*strict=*/true, other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group 0 of the state dict has \"a\"")));
  EXPECT_EQ(LrOf(other, 0), 5);
  EXPECT_OK(SavedParamGroups(groups, other).Load(/*strict=*/false, other));
  EXPECT_EQ(LrOf(other, 0), 2);
  EXPECT_EQ(LrOf(other, 1), 1);
  EXPECT_EQ(LrOf(other, 2), 7) << "no saved group has its parameter";
  Sgd joined = OfSgd("bc", 5);
  EXPECT_THAT(SavedParamGroups(groups, joined).Load(/*strict=*/false, joined),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"lr\" is 1.0 and 2.0 in the groups")));
  EXPECT_EQ(LrOf(joined), 5);
}

}  // namespace
}  // namespace fsdp
