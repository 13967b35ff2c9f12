// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/frozen_parameters.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/causal_lm.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::unique_ptr<Module> MakeGpt2() {
  const absl::StatusOr<CausalLmConfig> config = CausalLmPreset("gpt2", "gpt2-tiny");
  EXPECT_OK(config);
  absl::StatusOr<std::unique_ptr<Module>> module = MakeCausalLm(*config);
  EXPECT_OK(module);
  return *std::move(module);
}

TEST(FrozenParametersTest, ExactlyTheParametersInWhoseNamesThePatternMatchesAreFrozen) {
  const std::unique_ptr<Module> module = MakeGpt2();
  ASSERT_OK(FreezeParameters("h\\.[0-9]+\\.attn", *module));
  for (const auto& [name, parameter] : module->NamedParameters()) {
    EXPECT_EQ(parameter->requires_grad, name.find(".attn.") == std::string::npos) << name;
  }
}

// The head is the embedding, whose name comes first.
TEST(FrozenParametersTest, ASharedParameterIsFrozenUnderAnyOfItsNames) {
  const std::unique_ptr<Module> module = MakeGpt2();
  ASSERT_OK(FreezeParameters("^lm_head", *module));
  for (const auto& [name, parameter] : module->NamedParameters()) {
    EXPECT_EQ(parameter->requires_grad, name != "lm_head.weight" && name != "transformer.wte.weight") << name;
  }
}

TEST(FrozenParametersTest, APatternThatFreezesNothingOrEverythingIsRefused) {
  const std::unique_ptr<Module> module = MakeGpt2();
  EXPECT_THAT(FreezeParameters("adapter", *module),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--freeze=adapter: matches none"), HasSubstr("transformer.wte.weight"))));
  EXPECT_THAT(FreezeParameters("(", *module),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--freeze: \"(\" is not a regular expression")));
  EXPECT_THAT(FreezeParameters("weight|bias", *module),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leaves none to train")));
}

TEST(FrozenParametersTest, NamesSurviveACheckpointAndATornTextIsAnError) {
  const std::vector<std::string> names = {"a", "b\"c"};
  EXPECT_THAT(DecodeFrozen(EncodeFrozen(names)), IsOkAndHolds(names));
  EXPECT_THAT(DecodeFrozen("[\"a\""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("extra \"frozen\"")));
  EXPECT_THAT(DecodeFrozen("[1]"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("extra \"frozen\"")));
}

TEST(FrozenParametersTest, OptimizerStateIsLeftOutByParameter) {
  StateDict wanted;
  wanted.Set(StateKey::Model("a"), ShardedTensor());
  wanted.Set(StateKey::OptimState("a", "exp_avg"), ShardedTensor());
  wanted.Set(StateKey::OptimState("b", "exp_avg"), ShardedTensor());
  wanted.aliases = {{"c", "a"}};
  const StateDict left = WithoutOptimState(wanted, {"a"});
  EXPECT_TRUE(left.contains(StateKey::Model("a")));
  EXPECT_FALSE(left.contains(StateKey::OptimState("a", "exp_avg")));
  EXPECT_TRUE(left.contains(StateKey::OptimState("b", "exp_avg")));
  EXPECT_EQ(left.aliases, wanted.aliases);
}

TEST(FrozenParametersTest, AChangeIsDescribedByName) {
  EXPECT_THAT(DescribeFrozenChange({"a", "b"}, {"a", "b"}), IsEmpty());
  EXPECT_THAT(DescribeFrozenChange({"a", "b"}, {"b", "c"}),
              ElementsAre("frozen in the run that saved, and trained from here on, with new optimizer state: a",
                          "trained in the run that saved, and frozen from here on, without their optimizer state: c"));
  EXPECT_THAT(DescribeFrozenChange({"a", "b", "c", "d", "e", "f", "g"}, {}),
              ElementsAre(HasSubstr(": a, b, c, d, e and 2 more")));
}

}  // namespace
}  // namespace fsdp
