// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/text_difference.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

void ExpectEqual(const std::string& a, const std::string& b) {
  EXPECT_EQ(CompareTexts(a, b), std::nullopt) << a;
  EXPECT_EQ(CompareTexts(b, a), std::nullopt) << b;
}

std::string DifferenceOf(const std::string& a, const std::string& b) {
  const std::optional<std::string> difference = CompareTexts(a, b);
  EXPECT_TRUE(CompareTexts(b, a).has_value()) << a;
  return difference.value_or("equal");
}

TEST(TextDifferenceTest, MembersInAnotherOrderAndOtherBlanksAreEqual) {
  ExpectEqual(R"([{"lr":0.001,"params":["w","b"],"betas":[0.9,0.95]}])",
              R"([ {"betas": [0.9, 0.95], "params": ["w", "b"], "lr": 1e-3} ])");
  ExpectEqual(R"({"a":{"x":null,"y":{}},"b":[]})", R"({"b":[],"a":{"y":{},"x":null}})");
}

TEST(TextDifferenceTest, NumbersAreEqualAsInPython) {
  ExpectEqual("1", "1.0");
  ExpectEqual("[1, 100, -3, 0, 0.1]", "[1e0, 1E+2, -3.0, -0.0, 0.1000]");
  ExpectEqual("1180591620717411303424", "1180591620717411303424.0");  // 2^70
  // As integers and doubles that a parser of doubles would round to each other.
  EXPECT_EQ(DifferenceOf("9007199254740993", "9007199254740992.0"),
            "differs: 9007199254740993 in A, 9007199254740992 in B");
  EXPECT_EQ(
      DifferenceOf("[332724090758049132448979897138935081983]", "[332724090758049132448979897138935081984]"),
      "differs at [0]: 332724090758049132448979897138935081983 in A, 332724090758049132448979897138935081984 in B");
  EXPECT_THAT(DifferenceOf("0.1", "0.10000000000000002"), HasSubstr("differs: 0.1"));
  EXPECT_EQ(DifferenceOf("[true]", "[1]"), "differs at [0]: true in A, 1 in B");
  EXPECT_EQ(DifferenceOf("\"1\"", "1"), "differs: \"1\" in A, 1 in B");
}

TEST(TextDifferenceTest, SetsAndDictsOfPythonHaveNoOrderAndListsHave) {
  ExpectEqual(R"({"__python__":"set","items":[1,2,3]})", R"({"items":[3,1.0,2],"__python__":"set"})");
  ExpectEqual(R"({"__python__":"dict","items":[[30,1],[2,"x"]]})", R"({"__python__":"dict","items":[[2,"x"],[30,1]]})");
  EXPECT_THAT(DifferenceOf(R"({"__python__":"tuple","items":[1,2]})", R"({"__python__":"tuple","items":[2,1]})"),
              HasSubstr("differs in 2 places, first at [\"items\"][0]: 1 in A, 2 in B"));
  EXPECT_THAT(DifferenceOf("[1,2]", "[2,1]"), HasSubstr("differs in 2 places"));
}

TEST(TextDifferenceTest, NamesOfParametersAreComparedWithoutTheirPrefixes) {
  const std::string a = R"([{"lr":0.1,"params":["net.w","net.b"],"param_names":["net.w","net.b"]}])";
  const std::string b = R"([{"lr":0.1,"params":["module.w","module.b"],"param_names":["module.w","module.b"]}])";
  EXPECT_EQ(CompareTexts(a, b, {"net.", "module."}), std::nullopt);
  EXPECT_EQ(CompareTexts(a, b),
            "differs in 4 places, first at [0][\"param_names\"][0]: \"net.w\" in A, \"module.w\" in B");
  EXPECT_EQ(CompareTexts(R"([{"tag":"net."}])", R"([{"tag":""}])", {"net.", ""}),
            "differs at [0][\"tag\"]: \"net.\" in A, \"\" in B");
}

TEST(TextDifferenceTest, TheFirstDifferenceIsNamedByItsPlace) {
  EXPECT_EQ(DifferenceOf(R"([{"lr":0.5},{"lr":0.25}])", R"([{"lr":0.5},{"lr":0.125}])"),
            "differs at [1][\"lr\"]: 0.25 in A, 0.125 in B");
  EXPECT_EQ(DifferenceOf(R"({"a":1})", R"({"a":1,"b":[2]})"), "differs at [\"b\"]: a list of 1 in B only");
  EXPECT_EQ(DifferenceOf(R"({"a":[1]})", R"({"a":[1,2]})"), "differs at [\"a\"]: a list of 1 in A, a list of 2 in B");
  EXPECT_EQ(DifferenceOf(R"({"a.b":1})", R"({"a":{"b":1}})"),
            "differs in 2 places, first at [\"a\"]: an object of 1 in B only");
}

TEST(TextDifferenceTest, TextsThatAreNotJsonAreComparedByteByByte) {
  EXPECT_EQ(DifferenceOf("version 1.10", "version 1.1"),
            "differs from byte 11 on: \"version 1.10\" in A, \"version 1.1\" in B");
  EXPECT_THAT(DifferenceOf("{\"a\":NaN}", "{\"a\": NaN}"), HasSubstr("differs from byte 5 on"));
  // A reader may take either of the two.
  EXPECT_THAT(DifferenceOf(R"({"a":1,"a":2})", R"({"a":2})"), HasSubstr("differs from byte"));
  const std::string deep(100'000, '[');
  EXPECT_THAT(DifferenceOf(deep, absl::StrCat(deep, "[")), HasSubstr("differs from byte 100000 on"));
}

}  // namespace
}  // namespace fsdp
