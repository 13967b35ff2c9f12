// SPDX-License-Identifier: Apache-2.0
//
// The numbers come from FSDP1: shapes of a model of two blocks, and the sizes that the real PyTorch gave its flat
// parameters.
#include "fsdp/checkpoint/source/flat_layout.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<FlatLayout::Parameter> TwoBlocks() {
  std::vector<FlatLayout::Parameter> parameters = {{"embed.weight", {13, 6}}};
  for (const std::string block : {"h.0", "h.1"}) {
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

std::vector<int64_t> OffsetsOf(const FlatUnit& unit) {
  std::vector<int64_t> offsets;
  for (const FlatUnit::Part& part : unit.parts) offsets.push_back(part.offset);
  return offsets;
}

TEST(FlatLayoutTest, AParameterIsInItsInnermostUnit) {
  ASSERT_OK_AND_ASSIGN(const std::vector<FlatUnit> units, DivideIntoUnits(TwoBlocks(), {"", "h.0", "h.1"}));
  EXPECT_EQ(units[0].parts.size(), 3);
  EXPECT_EQ(units[1].parts[2].fqn, "h.0.up.weight");
  EXPECT_EQ(units[2].parts.size(), 5);
  EXPECT_THAT(DivideIntoUnits(TwoBlocks(), {"h.0", "h.1"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("parameter \"embed.weight\" is in no unit")));
  EXPECT_THAT(DivideIntoUnits(TwoBlocks(), {"", "x"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("unit \"x\" holds no parameter")));
}

// Later sums of sizes would overflow.
TEST(FlatLayoutTest, MoreElementsThanOneTensorMayHaveAreRefused) {
  std::string json = R"({"parameters": [{"name": "p0", "shape": [1152921504606846976]})";
  ASSERT_OK(ParseFlatLayout(json + "]}"));
  EXPECT_THAT(ParseFlatLayout(json + R"(, {"name": "p1", "shape": [1]}]})"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("up to \"p1\", have more than 2^60 elements")));
}

TEST(FlatLayoutTest, PartsLieOneAfterTheOtherOrAligned) {
  ASSERT_OK_AND_ASSIGN(std::vector<FlatUnit> units, DivideIntoUnits(TwoBlocks(), {"", "h.0", "h.1"}));
  FlatUnit& block = units[1];
  ASSERT_OK(PlacePacked(129, 1, block));
  EXPECT_THAT(OffsetsOf(block), ElementsAre(0, 6, 12, 66, 75));
  ASSERT_OK(PlacePacked(132, 4, block));  // 129, padded for four ranks
  EXPECT_THAT(OffsetsOf(block), ElementsAre(0, 6, 12, 66, 75));
  ASSERT_OK(PlaceParts(129, 3, block));
  EXPECT_THAT(OffsetsOf(block), ElementsAre(0, 6, 12, 66, 75));
  ASSERT_OK(PlaceParts(138, 2, block));  // use_orig_params: multiples of four elements
  EXPECT_THAT(OffsetsOf(block), ElementsAre(0, 8, 16, 72, 84));
  EXPECT_THAT(
      PlaceParts(140, 2, block),
      StatusIs(
          StatusCode::kInvalidArgument,
          HasSubstr(
              "of unit \"h.0\" has 140 elements, which its 5 parameters of 129 elements do not make for 2 ranks")));
  // 129 elements, or 138 with alignment: for 69 ranks both end at 138.
  EXPECT_THAT(PlaceParts(138, 69, block),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("with and without alignment")));
}

TEST(FlatLayoutTest, NamesOfFlatParametersNameTheirUnits) {
  EXPECT_EQ(UnitOfFlatName("_flat_param"), "");
  EXPECT_EQ(UnitOfFlatName("_fsdp_wrapped_module._flat_param"), "");
  EXPECT_EQ(UnitOfFlatName("_fsdp_wrapped_module.h.0._fsdp_wrapped_module._flat_param"), "h.0");
  EXPECT_TRUE(IsFlatName("h.0._flat_param"));
  EXPECT_FALSE(IsFlatName("my_flat_param"));
}

TEST(FlatLayoutTest, JsonIsReadOrRefusedWithTheReason) {
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                       ParseFlatLayout(R"({"parameters": [{"name": "a", "shape": [2, 3]}], "units": [""]})"));
  EXPECT_EQ(layout.parameters[0].shape, Shape({2, 3}));
  EXPECT_THAT(layout.units, ElementsAre(""));
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[]", "expected a JSON object"},
      {R"({"parameters": [{"name": "a"}]})", "expected {\"name\", \"shape\"}"},
      {R"({"parameters": [{"name": "a", "shape": ["x"]}]})", "parameter \"a\""},
      {R"({"parameters": [{"name": "a", "shape": []}, {"name": "a", "shape": []}]})", "is there twice"},
      {R"({"parameters": [], "units": "x"})", "\"units\" is not an array"},
      {R"({"parameters": [], "parameters": []})", "\"parameters\" appears twice"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(ParseFlatLayout(json), StatusIs(StatusCode::kInvalidArgument, HasSubstr(message))) << json;
  }
}

TEST(FlatLayoutTest, ALayoutCostsFourTimesItsTextAnd64MiB) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto parameter = [](int i) { return absl::StrCat("{\"name\":\"", i, "\",\"shape\":[1,1]}"); };
  const auto empty = [](int) { return std::string("\"\""); };
  const auto object = [](int) { return std::string("{}"); };
  const auto cheap = [](const char* what, bool is_accepted, const std::string& text) {
    ExpectCheapDecoding(what, text, is_accepted, [&](std::string_view) { return ParseFlatLayout(text).status(); });
  };
  cheap("parameters", true, ManyItems("{\"parameters\":[", parameter, "]}"));
  cheap("units", false, ManyItems("{\"parameters\":[],\"units\":[", empty, "]}"));
  cheap("unknown", true, ManyItems("{\"parameters\":[],\"x\":[", object, "]}"));
}

}  // namespace
}  // namespace fsdp
