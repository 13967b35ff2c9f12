// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/safetensors_shards.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A part of a tensor of uint8.
struct TestPart {
  std::string name;
  std::vector<int64_t> shape, start;
  std::vector<uint8_t> bytes;
};

class SafetensorsShardsTest : public testing::Test {
 protected:
  SafetensorsShardsTest() : directory_(absl::StrCat(testing::TempDir(), "/shards_test")) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  // Writes the file of a rank, from 1, as torch names it.
  void WriteRank(int rank, const std::vector<TestPart>& parts, const std::string& more_info = "") const {
    std::vector<std::string> entries, places;
    std::string payload;
    for (const TestPart& part : parts) {
      const size_t end = payload.size() + part.bytes.size();
      entries.push_back(absl::StrCat("\"", part.name, R"(":{"dtype":"U8","shape":[)", absl::StrJoin(part.shape, ","),
                                     R"(],"data_offsets":[)", payload.size(), ",", end, "]}"));
      places.push_back(
          absl::StrCat(R"(\")", part.name, R"(\":{\"saved_offsets\":[)", absl::StrJoin(part.start, ","), "]}"));
      payload.append(part.bytes.begin(), part.bytes.end());
    }
    const std::string header =
        absl::StrCat(R"({"__metadata__":{"DCP_VERSION":"1.0","format":"pt","DCP_SHARDING_INFO":"{)",
                     absl::StrJoin(places, ","), more_info, R"(}"},)", absl::StrJoin(entries, ","), "}");
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
    std::ofstream(absl::StrCat(directory_, "/shard-0000", rank, "-model-00001-of-00001.safetensors"), std::ios::binary)
        << length << header << payload;
  }

  const std::string directory_;
};

// Element i of "rows" and "columns" is i.
void ExpectElements(const TensorSource& source, const std::string& name, int64_t numel) {
  for (int64_t begin = 0; begin < numel; ++begin) {
    for (int64_t end = begin + 1; end <= numel; ++end) {
      std::vector<uint8_t> actual(end - begin, 0xA5);
      std::vector<uint8_t> expected(end - begin);
      std::iota(expected.begin(), expected.end(), static_cast<uint8_t>(begin));
      ASSERT_OK(source.Read(StateKey::Model(name), {begin, end}, actual.data()));
      ASSERT_EQ(actual, expected) << name << " " << begin << " to " << end;
    }
  }
}

TEST_F(SafetensorsShardsTest, ThePartsOfAllRanksAreOneModel) {
  WriteRank(1, {{"rows", {2, 3}, {0, 0}, {0, 1, 2, 3, 4, 5}},
                {"columns", {2, 2}, {0, 0}, {0, 1, 5, 6}},
                {"scalar", {}, {}, {0}},
                {"empty", {0, 2}, {0, 0}, {}}});
  WriteRank(2, {{"rows", {1, 3}, {2, 0}, {6, 7, 8}}, {"columns", {2, 3}, {0, 2}, {2, 3, 4, 7, 8, 9}}});
  EXPECT_THAT(IsHuggingFaceDirectory(directory_), IsOkAndHolds(true));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(directory_));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("rows"))->shape, Shape({3, 3}));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("columns"))->shape, Shape({2, 5}));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("empty"))->shape, Shape({0, 2}));
  ExpectElements(*source, "rows", 9);
  ExpectElements(*source, "columns", 10);
  ExpectElements(*source, "scalar", 1);
  EXPECT_EQ(source->world_size(), 2);
  EXPECT_EQ(source->metadata().size(), 1);  // "format"
  EXPECT_THAT(source->layout().notes, ElementsAre(HasSubstr("put together from the parts of 2 ranks; no file has")));
  ASSERT_OK_AND_ASSIGN(const auto places, source->Places(StateKey::Model("columns")));
  ASSERT_EQ(places.size(), 2);
  EXPECT_THAT(places[1].box.start, ElementsAre(0, 2));
}

TEST_F(SafetensorsShardsTest, PartsThatDoNotFillATensorAreNamed) {
  const TestPart first = {"w", {2, 2}, {0, 0}, {0, 1, 2, 3}};
  WriteRank(1, {first});
  WriteRank(3, {{"w", {1, 2}, {3, 0}, {6, 7}}});
  const auto message = AllOf(HasSubstr("tensor \"w\" of " + directory_), HasSubstr("its 2 parts do not fill [4, 2]"));
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, message));
  WriteRank(2, {{"w", {1, 2}, {2, 0}, {4, 5}}});
  EXPECT_OK(OpenSafetensorsSource(directory_).status());
  // As many elements as the tensor has, but some twice.
  WriteRank(2, {{"w", {1, 2}, {1, 0}, {4, 5}}});
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, HasSubstr("do not fill [4, 2]")));
}

TEST_F(SafetensorsShardsTest, APartOfAnotherKindIsNamed) {
  WriteRank(1, {{"w", {2, 2}, {0, 0}, {0, 1, 2, 3}}});
  WriteRank(2, {{"w", {2}, {2}, {4, 5}}});
  EXPECT_THAT(OpenSafetensorsSource(directory_),
              StatusIs(StatusCode::kDataLoss, HasSubstr("shard-00002-model-00001-of-00001.safetensors is another's")));
  WriteRank(2, {{"w", {1, 2}, {2}, {4, 5}}});
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, HasSubstr("is another's")));
  WriteRank(2, {{"w", {1, 2}, {9223372036854775807, 0}, {4, 5}}});
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, HasSubstr("a part begins at 9223")));
}

TEST_F(SafetensorsShardsTest, AConsolidatedModelIsReadAndTheShardsAreNot) {
  WriteRank(1, {{"w", {1}, {0}, {7}}});
  std::filesystem::copy(directory_ + "/shard-00001-model-00001-of-00001.safetensors",
                        directory_ + "/model-00001-of-00001.safetensors");
  std::ofstream(directory_ + "/model.safetensors.index.json")
      << R"({"weight_map":{"w":"model-00001-of-00001.safetensors"}})";
  EXPECT_THAT(IsOfShards(directory_), IsOkAndHolds(false));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(directory_));
  EXPECT_EQ(source->files().size(), 1);
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("shard-00001-model-00001-of-00001.safetensors")));
}

}  // namespace
}  // namespace fsdp
