// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/convert_plan.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

ShardedTensor TensorOf(DType dtype, const Shape& shape) {
  ShardedTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  return tensor;
}

// Two parameters, one of them tied, an integer buffer, optimizer state, groups, units and an extra.
StateDict Source() {
  StateDict source;
  source.Set(StateKey::Model("net.wte.weight"), TensorOf(DType::kFloat32, {5, 2}));
  source.Set(StateKey::Model("net.h.0.bias"), TensorOf(DType::kFloat32, {3}));
  source.Set(StateKey::Model("net.mask"), TensorOf(DType::kInt64, {4}));
  source.Set(StateKey::OptimState("net.wte.weight", "exp_avg"), TensorOf(DType::kFloat32, {5, 2}));
  source.Set(StateKey::OptimState("net.h.0.bias", "exp_avg"), TensorOf(DType::kFloat32, {3}));
  source.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.001,"params":["net.wte.weight","net.h.0.bias"]}])"));
  source.Set(StateKey::Extra("net.position"), std::string("17"));
  source.aliases["net.head.weight"] = "net.wte.weight";
  source.units = {{"", {{"net.wte.weight", 0, 10}, {"net.h.0.bias", 10, 3}}, 16}, {"net.h.0", {}, 0}};
  return source;
}

absl::StatusOr<ConvertPlan> Plan(const NameFilter::Patterns& patterns, std::optional<DType> dtype = std::nullopt,
                                 bool model_only = false) {
  FSDP_ASSIGN_OR_RETURN(const NameFilter filter, NameFilter::Create(patterns));
  return PlanConversion(Source(), filter, dtype, model_only);
}

std::vector<std::string> Keys(const StateDict& contents) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : contents.entries()) keys.push_back(key.ToString());
  return keys;
}

TEST(ConvertPlanTest, KeepsEverythingByDefault) {
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan({}));
  EXPECT_EQ(Keys(plan.contents), Keys(Source()));
  EXPECT_TRUE(plan.origins.empty());
  EXPECT_EQ(plan.contents.aliases, Source().aliases);
  EXPECT_EQ(plan.contents.units.size(), 2);
  EXPECT_EQ(*plan.contents.FindText(StateKey::ParamGroups()), *Source().FindText(StateKey::ParamGroups()));
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("net.wte.weight"))->shape, Shape({5, 2}));
}

TEST(ConvertPlanTest, TensorsInAValueOfTheModelFollowIt) {
  StateDict source = Source();
  const std::string text = R"({"amax":{"__python__":"reference","name":"model/net.h._extra_state.amax"}})";
  source.Set(ModelValue("net.h._extra_state"), text);
  source.Set(ModelValue("net.h._extra_state.amax"), TensorOf(DType::kFloat32, {3}));
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{}, {}, {{"^net\\.", "body."}}}));
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, PlanConversion(source, filter, std::nullopt, /*model_only=*/true));
  EXPECT_EQ(*plan.contents.FindText(ModelValue("body.h._extra_state")),
            R"({"amax":{"__python__":"reference","name":"model/body.h._extra_state.amax"}})");
  EXPECT_NE(plan.contents.FindTensor(ModelValue("body.h._extra_state.amax")), nullptr);
}

TEST(ConvertPlanTest, NumbersOfOptimizerStateFollowTheirParameter) {
  StateDict source = Source();
  source.Set(ExtraOfState("net.wte.weight", "step"), std::string("7"));
  source.Set(ExtraOfState("net.h.0.bias", "GG.[1]"), std::string("8"));
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{}, {"bias"}, {{"^net\\.", "model."}}}));
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, PlanConversion(source, filter, std::nullopt, false));
  EXPECT_THAT(Keys(plan.contents), Contains("extra/optim/state/model.wte.weight/step"));
  EXPECT_THAT(Keys(plan.contents), Not(Contains(HasSubstr("GG"))));
}

TEST(ConvertPlanTest, ARenameAppliesToEverythingThatNamesTheParameter) {
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan({{}, {}, {{"^net\\.", "model."}}}));
  EXPECT_THAT(Keys(plan.contents),
              ElementsAre("model/model.wte.weight", "model/model.h.0.bias", "model/model.mask",
                          "optim/state/model.wte.weight/exp_avg", "optim/state/model.h.0.bias/exp_avg",
                          "optim/param_groups", "extra/net.position"));
  EXPECT_EQ(plan.OriginOf(StateKey::OptimState("model.h.0.bias", "exp_avg")),
            StateKey::OptimState("net.h.0.bias", "exp_avg"));
  EXPECT_EQ(*plan.contents.FindText(StateKey::ParamGroups()),
            R"([{"lr":0.001,"params":["model.wte.weight","model.h.0.bias"]}])");
  EXPECT_THAT(plan.contents.aliases, ElementsAre(Pair("model.head.weight", "model.wte.weight")));
  EXPECT_EQ(plan.contents.units[0].name, "");
  EXPECT_EQ(plan.contents.units[0].parameters[1].fqn, "model.h.0.bias");
  EXPECT_EQ(plan.contents.units[0].parameters[1].offset, 10);
  EXPECT_EQ(plan.contents.units[0].unsharded_numel, 16);
  EXPECT_EQ(plan.contents.units[1].name, "model.h.0");
}

TEST(ConvertPlanTest, AFilterAppliesToEverythingThatNamesTheParameter) {
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan({{}, {"wte|head"}, {}}));
  EXPECT_THAT(plan.notes, IsEmpty());
  EXPECT_THAT(Keys(plan.contents),
              ElementsAre("model/net.h.0.bias", "model/net.mask", "optim/state/net.h.0.bias/exp_avg",
                          "optim/param_groups", "extra/net.position"));
  EXPECT_EQ(*plan.contents.FindText(StateKey::ParamGroups()), R"([{"lr":0.001,"params":["net.h.0.bias"]}])");
  EXPECT_TRUE(plan.contents.aliases.empty());
  ASSERT_EQ(plan.contents.units[0].parameters.size(), 1);
  EXPECT_EQ(plan.contents.units[0].parameters[0].offset, 10);
}

// Regression: the tensor went with its first name, and the other name, which passed the filter, with it.
TEST(ConvertPlanTest, ATiedTensorStaysUnderTheNameThatPassesTheFilter) {
  for (const NameFilter::Patterns& patterns :
       {NameFilter::Patterns{{}, {"wte"}, {}}, NameFilter::Patterns{{"head", "bias", "mask"}, {}, {}}}) {
    ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan(patterns));
    EXPECT_THAT(Keys(plan.contents),
                ElementsAre("model/net.head.weight", "model/net.h.0.bias", "model/net.mask",
                            "optim/state/net.head.weight/exp_avg", "optim/state/net.h.0.bias/exp_avg",
                            "optim/param_groups", "extra/net.position"));
    EXPECT_EQ(plan.OriginOf(StateKey::Model("net.head.weight")), StateKey::Model("net.wte.weight"));
    EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("net.head.weight"))->shape, Shape({5, 2}));
    EXPECT_EQ(*plan.contents.FindText(StateKey::ParamGroups()),
              R"([{"lr":0.001,"params":["net.head.weight","net.h.0.bias"]}])");
    EXPECT_THAT(plan.contents.aliases, IsEmpty());
    EXPECT_EQ(plan.contents.units[0].parameters[0].fqn, "net.head.weight");
    EXPECT_THAT(plan.notes, ElementsAre("\"net.wte.weight\" is left out by the filters, and its tensor is kept as "
                                        "\"net.head.weight\", another name of it"));
  }
}

TEST(ConvertPlanTest, ATensorOfManyNamesKeepsAllThatPassTheFilter) {
  StateDict source = Source();
  for (const char* alias : {"net.a", "net.head.tied", "net.z"}) source.aliases[alias] = "net.wte.weight";
  source.Set(StateKey::ParamGroups(), std::string(R"([{"params":["net.a"]}])"));
  const auto plan_of = [&](const NameFilter::Patterns& patterns) {
    return PlanConversion(source, NameFilter::Create(patterns).value(), std::nullopt, /*model_only=*/false);
  };
  ASSERT_OK_AND_ASSIGN(const ConvertPlan tied, plan_of({{}, {"wte", "^net\\.[az]$"}, {{"^net", "body"}}}));
  EXPECT_TRUE(tied.contents.contains(StateKey::Model("body.head.tied")));
  EXPECT_THAT(tied.contents.aliases, ElementsAre(Pair("body.head.weight", "body.head.tied")));
  EXPECT_EQ(*tied.contents.FindText(StateKey::ParamGroups()), R"([{"params":["body.head.tied"]}])");
  EXPECT_THAT(tied.notes, ElementsAre(HasSubstr("kept as \"net.head.tied\"")));

  ASSERT_OK_AND_ASSIGN(const ConvertPlan first, plan_of({{"wte", "net.z"}, {}, {}}));
  EXPECT_TRUE(first.contents.contains(StateKey::Model("net.wte.weight")));
  EXPECT_THAT(first.contents.aliases, ElementsAre(Pair("net.z", "net.wte.weight")));
  EXPECT_EQ(*first.contents.FindText(StateKey::ParamGroups()), R"([{"params":["net.wte.weight"]}])");
  EXPECT_THAT(first.notes, IsEmpty());
}

TEST(ConvertPlanTest, AnAliasThatIsStoredTooIsATensorOfItsOwn) {
  StateDict source = Source();
  source.aliases["net.h.0.bias"] = "net.wte.weight";
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{}, {"wte|head"}, {}}));
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, PlanConversion(source, filter, std::nullopt, /*model_only=*/true));
  EXPECT_THAT(Keys(plan.contents), ElementsAre("model/net.h.0.bias", "model/net.mask"));
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("net.h.0.bias"))->shape, Shape({3}));
}

TEST(ConvertPlanTest, ADTypeAppliesToFloatingPointModelTensors) {
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan({}, DType::kBFloat16));
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("net.wte.weight"))->dtype, DType::kBFloat16);
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("net.mask"))->dtype, DType::kInt64);
  EXPECT_EQ(plan.contents.FindTensor(StateKey::OptimState("net.wte.weight", "exp_avg"))->dtype, DType::kFloat32);
}

TEST(ConvertPlanTest, APackedTensorKeepsItsDTypeAndIsNamed) {
  StateDict source;
  source.Set(StateKey::Model("w"), TensorOf(DType::kFloat4E2M1FNx2, {4, 8}));
  source.Set(StateKey::Model("norm"), TensorOf(DType::kFloat32, {4}));
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, PlanConversion(source, NameFilter(), DType::kBFloat16, false));
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("w"))->dtype, DType::kFloat4E2M1FNx2);
  EXPECT_EQ(plan.contents.FindTensor(StateKey::Model("norm"))->dtype, DType::kBFloat16);
  EXPECT_THAT(plan.notes, ElementsAre("1 packed tensor keeps its dtype, float4_e2m1fn_x2: \"w\""));
  ASSERT_OK_AND_ASSIGN(const ConvertPlan kept, PlanConversion(source, NameFilter(), std::nullopt, false));
  EXPECT_THAT(kept.notes, IsEmpty());
}

TEST(ConvertPlanTest, ModelOnlyLeavesOptimizerAndExtraValuesOut) {
  ASSERT_OK_AND_ASSIGN(const ConvertPlan plan, Plan({}, std::nullopt, true));
  EXPECT_THAT(Keys(plan.contents), ElementsAre("model/net.wte.weight", "model/net.h.0.bias", "model/net.mask"));
  EXPECT_EQ(plan.contents.units.size(), 2);
}

TEST(ConvertPlanTest, AValueOfTheModelStaysWithItAndFollowsItsFiltersAndNames) {
  StateDict source = Source();
  source.Set(ModelValue("net.h.0._extra_state"), std::string("[1]"));
  const auto keys_of = [&](const NameFilter::Patterns& patterns) -> std::vector<std::string> {
    const absl::StatusOr<NameFilter> filter = NameFilter::Create(patterns);
    EXPECT_OK(filter.status());
    const absl::StatusOr<ConvertPlan> plan = PlanConversion(source, *filter, std::nullopt, /*model_only=*/true);
    EXPECT_OK(plan.status());
    return Keys(plan->contents);
  };
  EXPECT_THAT(keys_of({}), Contains("extra/model/net.h.0._extra_state"));
  EXPECT_THAT(keys_of({{}, {"h.0"}, {}}), Not(Contains(HasSubstr("_extra_state"))));
  EXPECT_THAT(keys_of({{}, {}, {{"^net", "body"}}}), Contains("extra/model/body.h.0._extra_state"));
}

TEST(ConvertPlanTest, NamesThatBecomeOneAreBothNamed) {
  EXPECT_THAT(
      Plan({{}, {}, {{"wte.weight|h.0.bias", "x"}}}),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("\"model/net.wte.weight\" and \"model/net.h.0.bias\""), HasSubstr("\"model/net.x\""))));
  EXPECT_THAT(Plan({{}, {}, {{"head.weight", "mask"}}}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("alias \"net.head.weight\" of \"net.wte.weight\" would be named")));
}

TEST(ConvertPlanTest, AFilterThatLeavesNothingIsAnError) {
  EXPECT_THAT(Plan({{"nothing"}, {}, {}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("filters leave no model tensor")));
}

TEST(ConvertPlanTest, GroupsThatAreNoJsonAreKeptUnlessNamesChange) {
  StateDict source = Source();
  source.Set(StateKey::ParamGroups(), std::string("not JSON"));
  ASSERT_OK_AND_ASSIGN(const NameFilter all, NameFilter::Create({}));
  EXPECT_OK(PlanConversion(source, all, std::nullopt, false));
  ASSERT_OK_AND_ASSIGN(const NameFilter some, NameFilter::Create({{}, {"wte"}, {}}));
  EXPECT_THAT(PlanConversion(source, some, std::nullopt, false),
              StatusIs(StatusCode::kDataLoss, HasSubstr("optim/param_groups: not JSON at byte")));
  source.Set(StateKey::ParamGroups(), std::string(100'000, '['));
  EXPECT_THAT(PlanConversion(source, some, std::nullopt, false),
              StatusIs(StatusCode::kDataLoss, HasSubstr("nested more than")));
}

}  // namespace
}  // namespace fsdp
