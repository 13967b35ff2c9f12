// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_testutil.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<GgufHeader> Parse(const std::string& bytes) { return ReadGgufHeader(ByteFile(bytes)); }

std::string TextOf(const std::string& entry) {
  const absl::StatusOr<GgufHeader> header = Parse(GgufBytes{.keys = {entry}}.ToString());
  if (!header.ok()) return std::string(header.status().message());
  return header->entries[0].value.why_not + header->entries[0].value.text;
}

const GgufBytes::Tensor kTwo = {"two", {2}, 0, std::string(8, '\1')};
const GgufBytes::Tensor kMatrix = {"matrix", {32, 3}, 8, std::string(102, '\2')};

TEST(GgufHeaderTest, TensorsHaveTheirPlacesAndTheReverseOfTheStoredDimensions) {
  const std::string bytes = GgufBytes{.tensors = {kTwo, kMatrix}}.ToString();
  ASSERT_OK_AND_ASSIGN(const GgufHeader header, Parse(bytes));
  ASSERT_EQ(header.tensors.size(), 2);
  EXPECT_EQ(header.tensors[1].name, "matrix");
  EXPECT_EQ(header.tensors[1].shape, Shape({3, 32}));
  EXPECT_EQ(header.tensors[1].type->name, "Q8_0");
  EXPECT_EQ(header.tensors[1].nbytes, 102);
  EXPECT_EQ(bytes.substr(header.tensors[0].offset, 8), kTwo.elements);
  EXPECT_EQ(bytes.substr(header.tensors[1].offset, 102), kMatrix.elements);
}

TEST(GgufHeaderTest, TheZerosAfterTheLastTensorMayBeMissingAndNothingElse) {
  const std::string bytes = GgufBytes{.tensors = {kTwo}}.ToString();
  EXPECT_OK(Parse(bytes).status());
  EXPECT_OK(Parse(bytes.substr(0, bytes.size() - 24)).status());
  EXPECT_THAT(Parse(bytes.substr(0, bytes.size() - 25)), StatusIs(StatusCode::kDataLoss, HasSubstr("truncated")));
  EXPECT_THAT(Parse(bytes.substr(0, bytes.size() - 23)), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(Parse(bytes + "x"), StatusIs(StatusCode::kDataLoss, HasSubstr("not all of it is GGUF")));
}

TEST(GgufHeaderTest, EveryTypeOfValueHasAText) {
  EXPECT_EQ(TextOf(GgufKey("k", 0, "\xC8")), "200");
  EXPECT_EQ(TextOf(GgufKey("k", 1, "\xC8")), "-56");
  EXPECT_EQ(TextOf(GgufKey("k", 2, GgufNumber(60000, 2))), "60000");
  EXPECT_EQ(TextOf(GgufKey("k", 3, GgufNumber(60000, 2))), "-5536");
  EXPECT_EQ(TextOf(GgufKey("k", 4, GgufNumber(4000000000, 4))), "4000000000");
  EXPECT_EQ(TextOf(GgufI32("k", -5)), "-5");
  EXPECT_EQ(TextOf(GgufKey("k", 6, GgufNumber(0x3DCCCCCD, 4))), "0.1");
  EXPECT_EQ(TextOf(GgufKey("k", 6, GgufNumber(0xFF800000, 4))), "-Infinity");
  EXPECT_EQ(TextOf(GgufKey("k", 6, GgufNumber(0x7FC00000, 4))), "NaN");
  EXPECT_EQ(TextOf(GgufKey("k", 7, "\1")), "true");
  EXPECT_EQ(TextOf(GgufString("k", "a \"text\"")), "a \"text\"");
  EXPECT_EQ(TextOf(GgufKey("k", 10, GgufNumber(uint64_t{1} << 63, 8))), "9223372036854775808");
  EXPECT_EQ(TextOf(GgufKey("k", 11, GgufNumber(uint64_t{1} << 63, 8))), "-9223372036854775808");
  EXPECT_EQ(TextOf(GgufKey("k", 12, GgufNumber(0x3FB999999999999A, 8))), "0.1");
}

TEST(GgufHeaderTest, AnArrayIsJson) {
  const auto array = [](uint32_t type, uint64_t count, const std::string& elements) {
    return absl::StrCat(GgufNumber(type, 4), GgufNumber(count, 8), elements);
  };
  EXPECT_EQ(TextOf(GgufKey("k", 9, array(7, 2, std::string("\1\0", 2)))), "[true,false]");
  EXPECT_EQ(TextOf(GgufKey("k", 9, array(5, 0, ""))), "[]");
  EXPECT_EQ(TextOf(GgufKey("k", 9, array(8, 2, GgufText("a\"\\\n") + GgufText("")))), R"(["a\"\\\u000a",""])");
  EXPECT_EQ(TextOf(GgufKey("k", 9, array(9, 2, array(0, 1, "\3") + array(0, 2, "\4\5")))), "[[3],[4,5]]");
  std::string deep = array(0, 0, "");
  for (int i = 0; i < 5; ++i) deep = array(9, 1, deep);
  EXPECT_THAT(TextOf(GgufKey("k", 9, deep)), HasSubstr("arrays in more than 4 arrays"));
}

TEST(GgufHeaderTest, ATextThatIsNotUtf8IsNamedAndNotKept) {
  EXPECT_EQ(TextOf(GgufString("k", "\xFF")), "is not UTF-8");
  const std::string elements = GgufText("a") + GgufText("\xFF") + GgufText("b");
  EXPECT_EQ(TextOf(GgufKey("k", 9, GgufNumber(8, 4) + GgufNumber(3, 8) + elements)), "is not UTF-8");
}

TEST(GgufHeaderTest, ATextWithoutRoomIsWalkedOver) {
  const std::string bytes = GgufBytes{
      .keys = {GgufString("long", std::string(33 << 20, 'x')), GgufU32("next", 7)},
      .tensors = {kTwo}}.ToString();
  ASSERT_OK_AND_ASSIGN(const GgufHeader header, Parse(bytes));
  EXPECT_EQ(header.entries[0].value.why_not, "is too long");
  EXPECT_EQ(header.entries[1].value.text, "7");
}

struct Broken {
  std::string what;
  GgufBytes bytes;
  std::string message;
};

TEST(GgufHeaderTest, EveryBrokenRuleIsNamed) {
  const std::vector<Broken> all = {
      {"version 1", {.version = 1}, "GGUF version 1, of August 2023"},
      {"version 4", {.version = 4}, "GGUF version 4, and versions 2 and 3 are read"},
      {"counts", {.tensors = {kTwo}, .count_error = 1 << 20}, "it states 1048577 tensors and 0 keys"},
      {"key twice", {.keys = {GgufU32("k", 1), GgufU32("k", 1)}}, "key \"k\" is there twice"},
      {"empty key", {.keys = {GgufU32("", 1)}}, "key 0 is \"\""},
      {"value type", {.keys = {GgufKey("k", 13, "12345678")}}, "key \"k\": its type is 13, expected 0 to 12"},
      {"bool", {.keys = {GgufKey("k", 7, "\2")}}, "a bool is 2"},
      {"array", {.keys = {GgufKey("k", 9, GgufNumber(4, 4) + GgufNumber(1 << 30, 8))}}, "an array of 1073741824"},
      {"text", {.keys = {GgufKey("k", 8, GgufNumber(uint64_t{1} << 60, 8))}}, "more bytes at byte"},
      {"alignment",
       {.keys = {GgufU32("general.alignment", 48)}},
       "general.alignment is \"48\", expected a power of two"},
      {"alignment 0", {.keys = {GgufU32("general.alignment", 0)}}, "general.alignment is \"0\""},
      {"alignment u16", {.keys = {GgufU16("general.alignment", 64)}}, "as uint32"},
      {"name twice", {.tensors = {kTwo, kTwo}}, "tensor \"two\" is there twice"},
      {"no name", {.tensors = {{"", {1}, 0, "1234"}}}, "tensor 0: name \"\" cannot be stored"},
      {"rank", {.tensors = {{"t", {1, 1, 1, 1, 1}, 0, "1234"}}}, "tensor \"t\": it has 5 dimensions"},
      {"shape", {.tensors = {{"t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, "1234"}}}, "tensor \"t\""},
      {"negative", {.tensors = {{"t", {~uint64_t{0}}, 0, "1234"}}}, "tensor \"t\""},
      {"size", {.tensors = {{"t", {uint64_t{1} << 40}, 0, "1234"}}}, "[1099511627776] of F32 is larger than the file"},
      {"type", {.tensors = {{"t", {1}, 4, "1234"}}}, "tensor \"t\": its type is 4, which is none"},
      {"row", {.tensors = {{"t", {48}, 8, "1234"}}}, "rows have 48 elements, expected a multiple of 32 for Q8_0"},
      {"offset", {.tensors = {kTwo, {"t", {1}, 0, "1234", 32}}}, "its elements begin at 64, expected 32"},
      {"overlap", {.tensors = {kTwo, {"t", {1}, 0, "1234", -32}}}, "its elements begin at 0, expected 32"},
  };
  for (const Broken& broken : all) {
    const absl::StatusOr<GgufHeader> header = Parse(broken.bytes.ToString());
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(broken.message)) << broken.what;
  }
}

TEST(GgufHeaderTest, VersionTwoIsVersionThree) {
  EXPECT_OK(Parse(GgufBytes{.version = 2, .tensors = {kMatrix}}.ToString()).status());
}

TEST(GgufHeaderTest, MillionsOfNamesInFewBytesAreRefused) {
  GgufBytes many;
  for (int i = 0; i < 200'000; ++i) many.tensors.push_back({absl::StrCat(i), {}, 24, "x"});
  EXPECT_THAT(Parse(many.ToString()),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("than a model has"), HasSubstr("bytes of memory"))));
}

}  // namespace
}  // namespace fsdp
