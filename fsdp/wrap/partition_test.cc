// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/wrap/partition.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/nn/module_list.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> NamesOf(const UnitModule& unit) {
  std::vector<std::string> names;
  for (const auto& parameter : unit.parameters) names.push_back(parameter->fqn);
  return names;
}

std::vector<std::string> Visits(const Partition& partition) {
  std::vector<std::string> visits;
  for (const UnitVisit& visit : partition.registration_order) {
    const size_t index = visit.unit;
    const bool is_unit = index < partition.units.size();
    const UnitModule& module = is_unit ? partition.units[index] : partition.bare[index - partition.units.size()];
    visits.push_back((visit.enter ? "enter " : "leave ") + module.display_name() + (is_unit ? "" : " (no unit)"));
  }
  return visits;
}

// root > 0 (Block) > 0.0, 0.1 (Conv1D); root > 1 (Conv1D).
class PartitionTest : public testing::Test {
 protected:
  PartitionTest() {
    block_ = root_.AddSequence("Block");
    first_ = block_->AddLinear(3, 5);
    second_ = block_->AddLinear(5, 7);
    last_ = root_.AddLinear(7, 2);
    root_.AssignNames();
  }

  void Freeze(const Module& module) {
    for (const auto& [name, parameter] : module.own_parameters()) parameter->requires_grad = false;
  }

  TestSequence root_;
  TestSequence* block_;
  Conv1D* first_;
  Conv1D* second_;
  Conv1D* last_;
};

TEST_F(PartitionTest, AUnitHasWhatNoUnitFurtherInsideHas) {
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       Partition::ByPolicy(root_, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))}));
  ASSERT_EQ(partition.units.size(), 2u);
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("1.weight", "1.bias"));
  EXPECT_THAT(NamesOf(partition.units[1]), ElementsAre("0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"));
  EXPECT_THAT(Visits(partition), ElementsAre("enter root", "enter 0", "leave 0", "leave root"));
  EXPECT_THAT(partition.warnings, IsEmpty());
}

TEST_F(PartitionTest, ModulesWithoutParametersOfTheirOwnAreNoUnits) {
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, {.auto_wrap_policy = AlwaysWrapPolicy()}));
  EXPECT_EQ(partition.units.size(), 3u);
  EXPECT_THAT(Visits(partition),
              ElementsAre("enter root (no unit)", "enter 0 (no unit)", "enter 0.0", "leave 0.0", "enter 0.1",
                          "leave 0.1", "leave 0 (no unit)", "enter 1", "leave 1", "leave root (no unit)"));
}

TEST_F(PartitionTest, SeveralModulesAreOneUnitFromTheFirstToTheLast) {
  const std::vector<UnitRequest> requests{{.modules = {&root_}}, {.modules = {first_, last_}}};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::Of(root_, requests, {}));
  ASSERT_EQ(partition.units.size(), 2u);
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("0.1.weight", "0.1.bias"));
  EXPECT_THAT(NamesOf(partition.units[1]), ElementsAre("0.0.weight", "0.0.bias", "1.weight", "1.bias"));
  EXPECT_EQ(partition.units[1].module, first_);
  EXPECT_THAT(Visits(partition), ElementsAre("enter root", "enter 0.0", "leave 0.0", "leave root"));
}

TEST_F(PartitionTest, IgnoredParametersAreUnmanaged) {
  FsdpOptions options{.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
  options.ignored_modules = {second_, last_};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, options));
  ASSERT_EQ(partition.units.size(), 1u);
  EXPECT_EQ(partition.units[0].name, "0");
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("0.0.weight", "0.0.bias"));
  std::vector<std::string> unmanaged;
  for (const auto& [name, parameter] : partition.unmanaged) unmanaged.push_back(name);
  EXPECT_THAT(unmanaged, ElementsAre("0.1.weight", "0.1.bias", "1.weight", "1.bias"));
}

TEST_F(PartitionTest, NoParameterIsLeftOver) {
  for (const WrapPolicy& policy : {WrapPolicy(), WrapPolicy(AlwaysWrapPolicy()), WrapPolicy(SizeBasedWrapPolicy(30))}) {
    ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, {.auto_wrap_policy = policy}));
    size_t in_units = 0;
    for (const UnitModule& unit : partition.units) in_units += unit.parameters.size();
    EXPECT_EQ(in_units, 6u);
    EXPECT_THAT(partition.unmanaged, IsEmpty());
  }
}

TEST_F(PartitionTest, IgnoringTheRootManagesNothingAndSaysSo) {
  FsdpOptions options;
  options.ignored_modules = {&root_};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, options));
  EXPECT_THAT(partition.units, IsEmpty());
  EXPECT_THAT(partition.warnings, ElementsAre("the wrapped module is ignored itself: nothing is managed"));
}

TEST_F(PartitionTest, SharedParametersLieInOneUnitOnce) {
  block_->AddAlias("tied", first_->own_parameters()[0].second);
  root_.AssignNames();
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       Partition::ByPolicy(root_, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))}));
  EXPECT_THAT(NamesOf(partition.units[1]), ElementsAre("0.tied", "0.0.bias", "0.1.weight", "0.1.bias"));
  EXPECT_THAT(partition.warnings, IsEmpty());
}

TEST_F(PartitionTest, ParametersSharedAcrossUnitsAreRefusedByBothNamesUnlessTheyAreMoved) {
  block_->AddAlias("tied", first_->own_parameters()[0].second);
  root_.AssignNames();
  const std::vector<UnitRequest> requests = {{.modules = {&root_}}, {.modules = {block_}}, {.modules = {first_}}};
  EXPECT_THAT(Partition::Of(root_, requests, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("is shared across units"), HasSubstr("\"0.0.weight\" is in unit 0.0"),
                             HasSubstr("its first name in unit 0;"), HasSubstr("wrap a module that holds both"))));
}

TEST_F(PartitionTest, FrozenWithTrainableIsRefusedWithBothListsOfNames) {
  Freeze(*second_);
  const FsdpOptions options{.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
  EXPECT_THAT(Partition::ByPolicy(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("unit 0 has parameters with and without requires_grad"),
                             HasSubstr("with: 0.0.weight, 0.0.bias;"), HasSubstr("without: 0.1.weight, 0.1.bias"))));
}

TEST_F(PartitionTest, TheInnermostMixOfFrozenAndTrainableIsTheOneNamed) {
  root_.AddUnused("frozen", {3})->requires_grad = false;
  Freeze(*second_);
  const FsdpOptions options{.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
  EXPECT_THAT(Partition::ByPolicy(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit 0 has")));
}

TEST_F(PartitionTest, UseOrigParamsTakesFrozenWithTrainableAndWarnsIfMostIsTrained) {
  Freeze(*last_);  // 16 of 78 elements
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, {.use_orig_params = true}));
  EXPECT_THAT(partition.warnings,
              ElementsAre(AllOf(HasSubstr("unit root has"), HasSubstr("gradients take the memory of all of them"))));
  Freeze(*second_);  // 42 more
  ASSERT_OK_AND_ASSIGN(const Partition frozen, Partition::ByPolicy(root_, {.use_orig_params = true}));
  EXPECT_THAT(frozen.warnings, IsEmpty());
}

TEST_F(PartitionTest, UnitsFrozenWholeAreNothingSpecial) {
  Freeze(*first_);
  Freeze(*second_);
  const FsdpOptions options{.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
  EXPECT_OK(Partition::ByPolicy(root_, options).status());
}

TEST_F(PartitionTest, AContainerAsAUnitIsWarnedOf) {
  ModuleList list;
  list.Append(std::make_unique<Conv1D>(3, 5, Initializer::Constant(1)));
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(list, {}));
  EXPECT_THAT(partition.warnings, ElementsAre("unit root is a ModuleList, which has no forward: its parameters are "
                                              "never all-gathered"));
}

TEST_F(PartitionTest, ClassesThatMixedPrecisionIgnoresAreWarnedOf) {
  root_.AddSequence("BatchNorm1d")->AddLinear(2, 2);
  const FsdpOptions options{.mixed_precision = {.param_dtype = DType::kBFloat16},
                            .auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, options));
  EXPECT_THAT(partition.warnings, ElementsAre("modules of these classes are units of their own without mixed "
                                              "precision: BatchNorm1d"));
}

}  // namespace
}  // namespace fsdp
