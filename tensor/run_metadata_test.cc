// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/run_metadata.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/tensor/state_dict.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Lines(const RunMetadata& saved, const RunMetadata& current) {
  std::vector<std::string> lines;
  for (const AttributeDifference& difference : CompareAttributes(saved, current)) lines.push_back(ToString(difference));
  return lines;
}

TEST(AttributesTest, ATextIsNoBoolAndAnIntIsNoDouble) {
  EXPECT_EQ(AttributeValue("relu").index(), AttributeValue(std::string("relu")).index());
  EXPECT_EQ(AttributeValue(3).index(), AttributeValue(int64_t{3}).index());
  EXPECT_NE(AttributeValue(1), AttributeValue(1.0));
  EXPECT_NE(AttributeValue(1), AttributeValue(true));
}

TEST(AttributesTest, ADoubleIsPrintedWithTheFewestDigitsThatGiveItBack) {
  EXPECT_EQ(ToString(AttributeValue(0.001)), "0.001");
  EXPECT_EQ(ToString(AttributeValue(1e-5)), "1e-05");
  EXPECT_EQ(ToString(AttributeValue(10000.0)), "10000.0");
  EXPECT_EQ(ToString(AttributeValue(-0.0)), "-0.0");
  for (const double value : {0.1 + 0.2, 1.0 / 3, std::numeric_limits<double>::denorm_min(), 1e300, 6e22}) {
    const std::string text = ToString(AttributeValue(value));
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
  }
}

TEST(AttributesTest, OtherValuesArePrintedAsJsonWritesThem) {
  EXPECT_EQ(ToString(AttributeValue()), "null");
  EXPECT_EQ(ToString(AttributeValue(true)), "true");
  EXPECT_EQ(ToString(AttributeValue(-4)), "-4");
  EXPECT_EQ(ToString(AttributeValue("a\"\x1b[2J")), R"("a\"\033[2J")");
}

TEST(AttributesTest, EveryDifferenceIsNamedWithBothValues) {
  const RunMetadata saved = {{"model.n_head", 3}, {"model.only_before", true}, {"options.lr", 0.1}, {"same", "x"}};
  const RunMetadata now = {{"model.n_head", 4}, {"options.lr", 0.2}, {"options.new", AttributeValue()}, {"same", "x"}};
  EXPECT_THAT(Lines(saved, now), ElementsAre("model.n_head: 3 -> 4", "model.only_before: true -> not recorded",
                                             "options.lr: 0.1 -> 0.2", "options.new: not recorded -> null"));
  EXPECT_THAT(Lines(saved, saved), IsEmpty());
}

TEST(AttributesTest, ASectionIsAPrefixOfNames) {
  EXPECT_EQ(InSection("model", {{"n_head", 3}}), (RunMetadata{{"model.n_head", 3}}));
}

TEST(AttributesTest, ACopyOfAStateDictHasItsAttributes) {
  StateDict state;
  EXPECT_THAT(state.attributes, IsEmpty());
  state.attributes["options.lr"] = 0.5;
  const StateDict copy = state;
  EXPECT_EQ(copy.attributes, (RunMetadata{{"options.lr", 0.5}}));
}

}  // namespace
}  // namespace fsdp
