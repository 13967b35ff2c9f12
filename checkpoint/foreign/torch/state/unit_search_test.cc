// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/unit_search.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Two blocks of 129 elements under `list`, and 90 elements around them: FSDP1's own shapes, as in flat_layout_test.
std::vector<FlatLayout::Parameter> Blocks(int count = 2) {
  std::vector<FlatLayout::Parameter> parameters = {{"embed.weight", {13, 6}}};
  for (int i = 0; i < count; ++i) {
    const std::string block = absl::StrCat("h.", i);
    parameters.push_back({block + ".norm.weight", {6}});
    parameters.push_back({block + ".norm.bias", {6}});
    parameters.push_back({block + ".up.weight", {9, 6}});
    parameters.push_back({block + ".up.bias", {9}});
    parameters.push_back({block + ".down.weight", {6, 9}});
  }
  parameters.push_back({"norm.weight", {6}});
  parameters.push_back({"norm.bias", {6}});
  return parameters;
}

TEST(UnitSearchTest, SizesTellTheUnits) {
  EXPECT_THAT(FindUnits(Blocks(), {90, 129, 129}, 1), IsOkAndHolds(ElementsAre("", "h.0", "h.1")));
  EXPECT_THAT(FindUnits(Blocks(), {90, 129, 129}, 3), IsOkAndHolds(ElementsAre("", "h.0", "h.1")));
  EXPECT_THAT(FindUnits(Blocks(), {348}, 1), IsOkAndHolds(ElementsAre("")));
  EXPECT_THAT(FindUnits(Blocks(), {90, 258}, 1), IsOkAndHolds(ElementsAre("", "h")));
  // Nested units.
  EXPECT_THAT(FindUnits(Blocks(), {90, 66, 63, 66, 63}, 1),
              IsOkAndHolds(ElementsAre("", "h.0", "h.0.up", "h.1", "h.1.up")));
}

TEST(UnitSearchTest, UnitsThatNoPolicyWouldChooseAreFoundToo) {
  // Wrapped by hand: only the second part of the first block.
  EXPECT_THAT(FindUnits(Blocks(1), {156, 63}, 1), IsOkAndHolds(ElementsAre("", "h.0.up")));
  // A Sequential whose layers have different structures and are wrapped separately.
  EXPECT_THAT(FindUnits({{"s.0.weight", {5, 3}}, {"s.2.weight", {2, 5}}, {"w", {7}}}, {7, 15, 10}, 1),
              IsOkAndHolds(ElementsAre("", "s.0", "s.2")));
}

TEST(UnitSearchTest, SizesThatNoChoiceMakesAreAnError) {
  EXPECT_THAT(FindUnits(Blocks(), {100, 248}, 1),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("no choice of units makes flat parameters of 100, 248 elements")));
}

TEST(UnitSearchTest, TwoChoicesAreAnErrorThatNamesThem) {
  // One of two equal blocks, wrapped by hand: the sizes do not reveal which one.
  EXPECT_THAT(FindUnits(Blocks(), {219, 129}, 1),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("more than one choice of units makes flat parameters of 219, 129 elements: "
                                 "[\"\", \"h.1\"] and [\"\", \"h.0\"]")));
  // Every second of four blocks.
  EXPECT_THAT(FindUnits(Blocks(4), {348, 129, 129}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than one")));
  // Modules of one size and different structure.
  EXPECT_THAT(FindUnits({{"w", {3}}, {"a.w", {4}}, {"b.v", {2, 2}}}, {7, 4}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than one choice of units")));
  // Padding hides whether "a" or, first of all, the root is the unit of five or six.
  EXPECT_THAT(FindUnits({{"a.w", {5}}, {"b.v", {6}}, {"c.w", {6}}}, {6, 6, 6}, 2),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than one choice of units")));
}

TEST(UnitSearchTest, ChoicesThatPlaceEveryParameterAlikeAreOne) {
  // "m" as a unit that holds only the elements of "m.x": one layout under two names.
  EXPECT_THAT(FindUnits({{"w", {2}}, {"m.x.w", {3}}, {"m.y.w", {4}}}, {2, 3, 4}, 1), IsOkAndHolds(SizeIs(3)));
}

TEST(UnitSearchTest, AStackOfAHundredBlocksIsQuick) {
  std::vector<int64_t> sizes = {90};
  sizes.resize(101, 129);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> units, FindUnits(Blocks(100), sizes, 1));
  EXPECT_EQ(units[100], "h.99");
  sizes[100] = 128;
  EXPECT_THAT(FindUnits(Blocks(100), sizes, 1),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("90, 129, 129, 129, 129, 129, 129, 129 and 93 more elements")));
}

}  // namespace
}  // namespace fsdp
