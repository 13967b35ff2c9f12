// SPDX-License-Identifier: Apache-2.0
//
// One test for each rule of the format, named after the rule.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_dtype.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// One float32 tensor "w" of 2 x 3, which is the whole payload of 24 bytes.
constexpr char kOne[] = R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

// A header whose only tensor, "w", has these members.
std::string Tensor(const std::string& members) { return absl::StrCat("{\"w\":{", members, "}}"); }

TEST(SafetensorsHeaderTest, ReadsATensor) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ParseSafetensorsHeader(kOne, 24));
  ASSERT_EQ(header.entries.size(), 1);
  EXPECT_EQ(header.entries[0].name, "w");
  EXPECT_EQ(header.entries[0].dtype, DType::kFloat32);
  EXPECT_EQ(header.entries[0].shape, Shape({2, 3}));
  EXPECT_EQ(header.entries[0].begin, 0);
  EXPECT_EQ(header.entries[0].end, 24);
  EXPECT_TRUE(header.metadata.empty());
}

TEST(SafetensorsHeaderTest, ScalarsAndEmptyTensorsAreLegal) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       ParseSafetensorsHeader(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},
                                                 "e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}})",
                                              8));
  ASSERT_EQ(header.entries.size(), 2);
  EXPECT_EQ(header.entries[0].shape.numel(), 1);
  EXPECT_EQ(header.entries[1].shape.numel(), 0);
}

TEST(SafetensorsHeaderTest, AFileWithoutTensorsIsLegal) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ParseSafetensorsHeader("{}", 0));
  EXPECT_TRUE(header.entries.empty());
}

TEST(SafetensorsHeaderTest, WhiteSpaceAroundTheObjectIsLegal) {
  EXPECT_OK(ParseSafetensorsHeader(absl::StrCat("  \n", kOne, "      "), 24));
}

TEST(SafetensorsHeaderTest, BeginsWithABrace) {
  for (const char* text : {"", "   ", "[]", "1", "\"w\"", "\xEF\xBB\xBF{}"}) {
    EXPECT_THAT(ParseSafetensorsHeader(text, 0), StatusIs(StatusCode::kDataLoss, HasSubstr("begin with '{'"))) << text;
  }
}

TEST(SafetensorsHeaderTest, NothingFollowsTheObject) {
  EXPECT_THAT(ParseSafetensorsHeader("{} x", 0), StatusIs(StatusCode::kDataLoss, HasSubstr("not JSON at byte 4")));
  EXPECT_THAT(ParseSafetensorsHeader("{}{}", 0), StatusIs(StatusCode::kDataLoss, HasSubstr("not JSON at byte 3")));
  EXPECT_THAT(ParseSafetensorsHeader(std::string_view("{}\0x", 4), 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("NUL byte")));
}

TEST(SafetensorsHeaderTest, TruncatedJsonIsRefused) {
  const std::string json = kOne;
  for (size_t length = 1; length < json.size(); ++length) {
    EXPECT_THAT(ParseSafetensorsHeader(json.substr(0, length), 24), StatusIs(StatusCode::kDataLoss)) << length;
  }
}

TEST(SafetensorsHeaderTest, NamesAreUtf8) {
  EXPECT_THAT(ParseSafetensorsHeader("{\"\xFF\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4),
              StatusIs(StatusCode::kDataLoss, HasSubstr("invalid string")));
  EXPECT_THAT(ParseSafetensorsHeader(R"({"\ud800":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
              StatusIs(StatusCode::kDataLoss, HasSubstr("surrogate")));
  EXPECT_OK(ParseSafetensorsHeader("{\"\xC3\xBC\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4));
}

TEST(SafetensorsHeaderTest, DuplicateNamesAreRefused) {
  EXPECT_THAT(ParseSafetensorsHeader(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                                        "w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                     2),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"w\" appears twice")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"w\": \"dtype\" appears twice")));
  EXPECT_THAT(ParseSafetensorsHeader(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"__metadata__\": \"a\" appears twice")));
}

TEST(SafetensorsHeaderTest, MetadataHoldsStringsOnly) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       ParseSafetensorsHeader(R"({"__metadata__":{"format":"pt","n":"1"}})", 0));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt"), Pair("n", "1")));
  EXPECT_THAT(ParseSafetensorsHeader(R"({"__metadata__":{"n":1}})", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("__metadata__ member \"n\" is a number, expected a string")));
  for (const char* value : {"null", "{\"a\":\"b\"}", "[\"x\"]", "true"}) {
    EXPECT_THAT(ParseSafetensorsHeader(absl::StrCat("{\"__metadata__\":{\"n\":", value, "}}"), 0),
                StatusIs(StatusCode::kDataLoss, HasSubstr("__metadata__ member \"n\"")))
        << value;
  }
  EXPECT_THAT(ParseSafetensorsHeader(R"({"__metadata__":"pt"})", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("__metadata__ is a string, expected an object of strings")));
}

TEST(SafetensorsHeaderTest, EveryMemberIsRequired) {
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("shape":[1],"data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": dtype is missing")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": shape is missing")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","shape":[1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": data_offsets is missing")));
}

TEST(SafetensorsHeaderTest, MembersHaveTheirTypes) {
  EXPECT_THAT(
      ParseSafetensorsHeader(R"({"w":7})", 0),
      StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": its description is a number, expected an object")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":4,"shape":[1],"data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("dtype is a number, expected a string")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("shape is a number, expected an array")));
  for (const char* dim : {"-1", "1.5", "1e2", "\"1\"", "null", "[1]", "-0", "18446744073709551616"}) {
    EXPECT_THAT(
        ParseSafetensorsHeader(Tensor(absl::StrCat(R"("dtype":"U8","shape":[)", dim, R"(],"data_offsets":[0,1])")), 1),
        StatusIs(StatusCode::kDataLoss, HasSubstr("expected an unsigned integer")))
        << dim;
  }
}

TEST(SafetensorsHeaderTest, MembersThatTheFormatDoesNotNameAreIgnored) {
  EXPECT_OK(ParseSafetensorsHeader(
      Tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"note":[{"shape":["x",null]},1.5,true])"), 1));
}

TEST(SafetensorsHeaderTest, UnknownDTypesAreRefusedByName) {
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("tensor \"w\": unknown dtype \"F31\"")));
  for (const char* name : {"F6_E2M3", "F6_E3M2"}) {
    EXPECT_THAT(
        ParseSafetensorsHeader(Tensor(absl::StrCat("\"dtype\":\"", name, R"(","shape":[2],"data_offsets":[0,2])")), 2),
        StatusIs(StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("tensor \"w\": dtype ", name, " is not supported"))));
  }
}

TEST(SafetensorsHeaderTest, EveryDTypeOfOursIsRead) {
  for (DType dtype : AllDTypes()) {
    if (dtype == DType::kComplex32 || dtype == DType::kComplex128) continue;  // the format has neither
    const std::string json =
        Tensor(absl::StrCat("\"dtype\":\"", std::string(SafetensorsDTypeName(dtype)), "\",\"shape\":[",
                            IsPacked(dtype) ? 6 : 3, "],\"data_offsets\":[0,", 3 * SizeOf(dtype), "]"));
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ParseSafetensorsHeader(json, 3 * SizeOf(dtype)));
    EXPECT_EQ(header.entries[0].dtype, dtype);
  }
}

// The format counts numbers, of which an element has two.
TEST(SafetensorsHeaderTest, TheLastDimensionOfF4IsTwiceOurs) {
  const std::string json = Tensor(R"("dtype":"F4","shape":[2,3,32],"data_offsets":[0,96])");
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ParseSafetensorsHeader(json, 96));
  EXPECT_EQ(header.entries[0].dtype, DType::kFloat4E2M1FNx2);
  EXPECT_EQ(header.entries[0].shape, Shape({2, 3, 16}));
  ASSERT_OK_AND_ASSIGN(const std::string written, EncodeSafetensorsHeader(header));
  EXPECT_THAT(written, HasSubstr(json));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"F4","shape":[2,3],"data_offsets":[0,3])"), 3),
              StatusIs(StatusCode::kDataLoss, HasSubstr("shape [2, 3] of F4, whose numbers are stored in pairs")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"F4","shape":[],"data_offsets":[0,1])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("shape [] of F4")));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"F4","shape":[4],"data_offsets":[0,4])"), 4),
              StatusIs(StatusCode::kDataLoss, HasSubstr("has 4 bytes, expected 2 for float4_e2m1fn_x2 [2]")));
  SafetensorsHeader scalar;
  scalar.entries = {{"w", DType::kFloat4E2M1FNx2, {}}};
  PlaceSafetensorsEntries(scalar.entries);
  EXPECT_THAT(EncodeSafetensorsHeader(scalar),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a scalar of float4_e2m1fn_x2 is two numbers")));
}

TEST(SafetensorsHeaderTest, DTypesThatTheFormatLacksAreNotWritten) {
  for (const DType dtype : {DType::kComplex32, DType::kComplex128}) {
    SafetensorsHeader header;
    header.entries = {{"w", dtype, {1}}};
    PlaceSafetensorsEntries(header.entries);
    EXPECT_THAT(EncodeSafetensorsHeader(header),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("tensor \"w\": safetensors has no dtype ",
                                                                              std::string(DTypeName(dtype))))));
  }
}

TEST(SafetensorsHeaderTest, BytesMatchDTypeAndShape) {
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,23])"), 23),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("tensor \"w\": data_offsets [0, 23] has 23 bytes, expected 24 for float32 [2, 3]")));
}

TEST(SafetensorsHeaderTest, SizesThatOverflowAreRefused) {
  for (const char* shape : {"4294967296,4294967296", "9223372036854775807,2", "18446744073709551615",
                            "4611686018427387904,4", "65536,65536,65536,65536", "0,9223372036854775808"}) {
    EXPECT_THAT(ParseSafetensorsHeader(
                    Tensor(absl::StrCat(R"("dtype":"F32","shape":[)", shape, R"(],"data_offsets":[0,0])")), 0),
                StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\"")))
        << shape;
  }
}

TEST(SafetensorsHeaderTest, OffsetsAreARange) {
  for (const char* offsets : {"8,0", "0,18446744073709551615", "18446744073709551608,18446744073709551615"}) {
    EXPECT_THAT(
        ParseSafetensorsHeader(Tensor(absl::StrCat(R"("dtype":"U8","shape":[1],"data_offsets":[)", offsets, "]")), 8),
        StatusIs(StatusCode::kDataLoss, HasSubstr("is not a range")))
        << offsets;
  }
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1),
              StatusIs(StatusCode::kDataLoss, HasSubstr("data_offsets has 3 numbers, expected 2")));
}

TEST(SafetensorsHeaderTest, HolesAreRefused) {
  EXPECT_THAT(
      ParseSafetensorsHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                                        "b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
                             10),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("tensor \"b\": begins at byte 6"), HasSubstr("expected 4"),
                                            HasSubstr("bytes [4, 6) belong to no tensor"))));
  EXPECT_THAT(ParseSafetensorsHeader(Tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": begins at byte 1 of the payload, expected 0")));
}

TEST(SafetensorsHeaderTest, OverlapsAreRefused) {
  EXPECT_THAT(
      ParseSafetensorsHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                                        "b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                             7),
      StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"b\": begins at byte 3 of the payload, inside tensor \"a\"")));
}

TEST(SafetensorsHeaderTest, TrailingBytesAreRefused) {
  EXPECT_THAT(ParseSafetensorsHeader(kOne, 25),
              StatusIs(StatusCode::kDataLoss, HasSubstr("bytes [24, 25) of the payload belong to no tensor")));
  EXPECT_THAT(ParseSafetensorsHeader("{}", 1), StatusIs(StatusCode::kDataLoss, HasSubstr("bytes [0, 1)")));
}

TEST(SafetensorsHeaderTest, ATruncatedPayloadIsRefused) {
  EXPECT_THAT(
      ParseSafetensorsHeader(kOne, 23),
      StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"w\": ends at byte 24 of the payload, which has 23 bytes")));
}

TEST(SafetensorsHeaderTest, NestingIsBounded) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string json = R"({"w":{"note":)";
    for (int i = 0; i < 1'000'000; ++i) json += open;
    EXPECT_THAT(ParseSafetensorsHeader(json, 0),
                StatusIs(StatusCode::kDataLoss, HasSubstr("nested more than 64 deep")));
  }
}

TEST(SafetensorsHeaderTest, ControlCharactersOfNamesDoNotReachMessages) {
  EXPECT_THAT(ParseSafetensorsHeader(R"({"\u001b[2J":7})", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"\\033[2J\"")));
}

TEST(SafetensorsHeaderTest, PlacesByDescendingAlignmentThenName) {
  std::vector<SafetensorsEntry> entries = {{"bool", DType::kBool, {3}},    {"b", DType::kFloat32, {1}},
                                           {"half", DType::kFloat16, {1}}, {"a", DType::kFloat32, {2}},
                                           {"long", DType::kInt64, {1}},   {"empty", DType::kBFloat16, {0, 7}}};
  PlaceSafetensorsEntries(entries);
  std::vector<std::string> names;
  int64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    names.push_back(entry.name);
    EXPECT_EQ(entry.begin, offset);
    EXPECT_EQ(entry.begin % SizeOf(entry.dtype), 0);
    offset = entry.end;
  }
  EXPECT_THAT(names, ElementsAre("long", "a", "b", "empty", "half", "bool"));
  EXPECT_EQ(offset, 8 + 8 + 4 + 2 + 3);
}

TEST(SafetensorsHeaderTest, EncodesWhatItParses) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"quote\"", "back\\slash\n\xC3\xBC"}};
  header.entries = {{"a.\xE4\xB8\x96", DType::kFloat64, {2}}, {"\x01 \"", DType::kFloat8E4M3FN, {}}};
  PlaceSafetensorsEntries(header.entries);
  ASSERT_OK_AND_ASSIGN(const std::string text, EncodeSafetensorsHeader(header));
  EXPECT_EQ(text.size() % 8, 0);
  EXPECT_EQ(text[8], '{');
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(text[i]);
  EXPECT_EQ(length, text.size() - 8);
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader parsed, ParseSafetensorsHeader(text.substr(8), 17));
  EXPECT_EQ(parsed.metadata, header.metadata);
  ASSERT_EQ(parsed.entries.size(), 2);
  EXPECT_EQ(parsed.entries[0].name, header.entries[0].name);
  EXPECT_EQ(parsed.entries[1].name, header.entries[1].name);
  EXPECT_EQ(parsed.entries[1].end, 17);
}

TEST(SafetensorsHeaderTest, NamesThatTheFormatCannotHoldAreNotWritten) {
  const auto encode = [](std::vector<std::string> names) {
    SafetensorsHeader header;
    for (const std::string& name : names) header.entries.push_back({name, DType::kUInt8, {1}});
    PlaceSafetensorsEntries(header.entries);
    return EncodeSafetensorsHeader(header);
  };
  EXPECT_THAT(encode({"a", "a"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("tensor \"a\": two tensors")));
  EXPECT_THAT(encode({"__metadata__"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("keeps this name")));
  EXPECT_THAT(encode({"\xFF"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("is not UTF-8")));
}

TEST(SafetensorsHeaderTest, AHeaderAboveTheLimitIsNotWritten) {
  SafetensorsHeader header;
  header.metadata["large"] = std::string(kMaxSafetensorsHeaderBytes, 'x');
  EXPECT_THAT(EncodeSafetensorsHeader(header),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than the format's limit of 100000000")));
}

}  // namespace
}  // namespace fsdp
