// SPDX-License-Identifier: Apache-2.0
//
// Headers and indexes that are large: what they cost (decode_memory_testutil.h).
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::Status Header(std::string_view text) { return ParseSafetensorsHeader(text, 0).status(); }
absl::Status Index(std::string_view text) { return ParseHuggingFaceIndex(text).status(); }

TEST(SafetensorsMemoryTest, AHeaderCostsFourTimesItsTextAnd64MiB) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto tensor = [](int i) {
    return absl::StrCat("\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  };
  const auto long_shape = [](int i) {
    return absl::StrCat("\"", i, R"(":{"dtype":"U8","shape":[0,1,1,1,1],"data_offsets":[0,0]})");
  };
  const auto pair = [](int i) { return absl::StrCat("\"", i, "\":\"\""); };
  const auto number = [](int i) { return absl::StrCat("\"", i, "\":0"); };
  const auto one = [](int) { return std::string("1"); };
  const auto large = [](int) { return std::string(kCostlyTextBytes, 'x'); };
  ExpectCheapDecoding("tensors", ManyItems("{", tensor, "}"), /*is_accepted=*/true, Header);
  ExpectCheapDecoding("shapes", ManyItems("{", long_shape, "}"), /*is_accepted=*/true, Header);
  ExpectCheapDecoding("metadata", ManyItems("{\"__metadata__\":{", pair, "}}"), /*is_accepted=*/false, Header);
  ExpectCheapDecoding("members of a tensor", ManyItems("{\"w\":{", number, "}}"), /*is_accepted=*/false, Header);
  ExpectCheapDecoding("dimensions", ManyItems("{\"w\":{\"shape\":[", one, "]}}"), /*is_accepted=*/false, Header);
  ExpectCheapDecoding("a long value", ManyItems("{\"__metadata__\":{\"a\":\"", large, "\"}}"),
                      /*is_accepted=*/true, Header);
  ExpectCheapDecoding("a long name", ManyItems("{\"", large, "\":0}"), /*is_accepted=*/false, Header);
}

TEST(SafetensorsMemoryTest, ATensorHasAtMost64Dimensions) {
  const auto header = [](int rank) {
    std::string shape = "1";
    for (int i = 1; i < rank; ++i) shape += ",1";
    return absl::StrCat(R"({"w":{"dtype":"U8","shape":[)", shape, R"(],"data_offsets":[0,1]}})");
  };
  EXPECT_OK(ParseSafetensorsHeader(header(64), 1));
  EXPECT_THAT(ParseSafetensorsHeader(header(65), 1),
              StatusIs(absl::StatusCode::kDataLoss, "tensor \"w\": shape has more than 64 numbers"));
}

TEST(SafetensorsMemoryTest, AnIndexCostsFourTimesItsTextAnd64MiB) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto named = [](int i) {
    return absl::StrCat("\"model.layers.0.self_attn.q_proj.weight.", i, "\": \"model-00001-of-00002.safetensors\"");
  };
  const auto pair = [](int i) { return absl::StrCat("\"", i, "\":\"a\""); };
  ExpectCheapDecoding("names", ManyItems("{\"weight_map\":{", named, "}}"), /*is_accepted=*/true, Index);
  ExpectCheapDecoding("short names", ManyItems("{\"weight_map\":{", pair, "}}"), /*is_accepted=*/false, Index);
}

TEST(SafetensorsMemoryTest, AnIndexAboveTheLimitIsNotWritten) {
  HuggingFaceIndex index;
  index.weight_map[std::string(kMaxHuggingFaceIndexBytes, 'x')] = "model-00001-of-00002.safetensors";
  EXPECT_THAT(EncodeHuggingFaceIndex(index),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than the 100000000 that are read")));
}

TEST(SafetensorsMemoryTest, TheLimitIsInTheError) {
  const auto pair = [](int i) { return absl::StrCat("\"", i, "\":\"a\""); };
  EXPECT_THAT(Index(ManyItems("{\"weight_map\":{", pair, "}}")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the values up to here take more than ")));
}

}  // namespace
}  // namespace fsdp
