// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/wrap/shared_parameters.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/wrap/manual_wrap.h"
#include "fsdp/fsdp/wrap/partition.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// root > 0 > 0.0, 0.1 (Conv1D); root > 1 (Conv1D). 0.1 also has the weight of 0.0, or 1 has it.
class SharedAcrossUnitsTest : public testing::Test {
 protected:
  SharedAcrossUnitsTest() {
    block_ = root_.AddSequence("Block");
    first_ = block_->AddSequence("Leaf");
    second_ = block_->AddSequence("Leaf");
    last_ = root_.AddSequence("Leaf");
    weight_ = first_->AddUnused("weight", {3});
    last_->AddUnused("bias", {2});
  }

  static std::vector<std::string> NamesOf(const UnitModule& unit) {
    std::vector<std::string> names;
    for (const auto& parameter : unit.parameters) names.push_back(parameter->fqn);
    return names;
  }

  TestSequence root_;
  TestSequence *block_, *first_, *second_, *last_;
  std::shared_ptr<Parameter> weight_;
};

TEST_F(SharedAcrossUnitsTest, TheInnermostUnitAroundAllPlacesHasTheParameterAndSaysSo) {
  second_->AddAlias("tied", weight_);
  root_.AssignNames();
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, {.auto_wrap_policy = AlwaysWrapPolicy()}));
  ASSERT_EQ(partition.units.size(), 2u);
  EXPECT_EQ(partition.units[0].name, "0");
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("0.0.weight"));
  EXPECT_THAT(NamesOf(partition.units[1]), ElementsAre("1.bias"));
  EXPECT_EQ(partition.bare.size(), 3u);  // the root, and both that gave their only parameter up
  EXPECT_THAT(partition.warnings,
              ElementsAre(AllOf(HasSubstr("\"0.0.weight\" is shared across units, also as \"0.1.tied\""),
                                HasSubstr("it is in unit 0, the innermost around all of its places"))));
}

TEST_F(SharedAcrossUnitsTest, WithoutAnotherUnitAroundItGoesToTheRoot) {
  last_->AddAlias("tied", weight_);
  root_.AssignNames();
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, {.auto_wrap_policy = AlwaysWrapPolicy()}));
  ASSERT_EQ(partition.units.size(), 2u);
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("0.0.weight"));
  EXPECT_EQ(partition.units[0].display_name(), "root");
  EXPECT_THAT(NamesOf(partition.units[1]), ElementsAre("1.bias"));
  EXPECT_EQ(partition.aliases.at("1.tied"), "0.0.weight");
}

TEST_F(SharedAcrossUnitsTest, AnIgnoredParameterIsMovedNowhere) {
  last_->AddAlias("tied", weight_);
  root_.AssignNames();
  FsdpOptions options{.auto_wrap_policy = AlwaysWrapPolicy()};
  options.ignored_states = std::vector<std::shared_ptr<Parameter>>{weight_};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::ByPolicy(root_, options));
  EXPECT_EQ(partition.unmanaged.size(), 2u);
  EXPECT_THAT(partition.warnings, IsEmpty());
}

TEST_F(SharedAcrossUnitsTest, AUnitWithAPrecisionOfItsOwnCannotGiveItUp) {
  last_->AddAlias("tied", weight_);
  root_.AssignNames();
  ASSERT_OK(WrapModule(*last_, {.mixed_precision = MixedPrecision{.param_dtype = DType::kBFloat16}}));
  EXPECT_THAT(Partition::ByPolicy(root_, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"1.tied\" is in unit 1, which has a precision of its own"),
                             HasSubstr("leave the precision of 1 to the model"))));
}

TEST_F(SharedAcrossUnitsTest, TwoRootsBelowAPlainModuleCannotShare) {
  last_->AddAlias("tied", weight_);
  root_.AssignNames();
  ASSERT_OK(WrapModule(*block_));
  ASSERT_OK(WrapModule(*last_));
  EXPECT_THAT(Partition::BelowPlain(root_, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parameter \"0.0.weight\" is shared across units"), HasSubstr("\"1.tied\""))));
}

TEST_F(SharedAcrossUnitsTest, UnitsInsideOneOfSeveralRootsCan) {
  second_->AddAlias("tied", weight_);
  root_.AssignNames();
  for (TestSequence* module : {first_, second_, block_, last_}) ASSERT_OK(WrapModule(*module));
  ASSERT_OK_AND_ASSIGN(const Partition partition, Partition::BelowPlain(root_, {}));
  ASSERT_EQ(partition.units.size(), 2u);
  EXPECT_TRUE(partition.units[0].is_root);
  EXPECT_THAT(NamesOf(partition.units[0]), ElementsAre("0.0.weight"));
}

}  // namespace
}  // namespace fsdp
