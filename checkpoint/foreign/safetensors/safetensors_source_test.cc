// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr char kTestData[] = "checkpoint/testdata/";

class SafetensorsSourceTest : public testing::Test {
 protected:
  SafetensorsSourceTest() : directory_(absl::StrCat(testing::TempDir(), "/source_test")) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  // A file whose header claims to be `header_bytes` long.
  static std::string File(uint64_t header_bytes, const std::string& rest) {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header_bytes >> (8 * i));
    return bytes + rest;
  }
  static std::string File(const std::string& json, const std::string& payload) {
    return File(json.size(), json + payload);
  }

  // A file of one uint8 tensor of 3 elements.
  static std::string OneTensor(const std::string& name) {
    return File(absl::StrCat("{\"", name, R"(":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})"), "abc");
  }

  std::string directory_;
};

// safetensors.torch.save_model writes one of the names of a shared tensor, and the others into __metadata__.
TEST_F(SafetensorsSourceTest, NamesOfATensorInTheMetadataAreAliases) {
  const std::string path = Write("a.safetensors", File(R"({"__metadata__":{"format":"w","head":"w","w":"w","x":"y"},)"
                                                       R"("w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                                                       "abc"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(path));
  EXPECT_THAT(source->contents().aliases, ElementsAre(Pair("head", "w")));
  EXPECT_EQ(source->metadata().at("head"), "w");
}

TEST_F(SafetensorsSourceTest, ATiedHeadOfADirectoryIsANote) {
  Write("model.safetensors", OneTensor("model.embed_tokens.weight"));
  Write("config.json", R"({"tie_word_embeddings": true})");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(directory_));
  EXPECT_THAT(source->layout().notes, ElementsAre(HasSubstr("lm_head.weight, which is in no file, is model.embed")));
  EXPECT_THAT(source->contents().aliases, testing::IsEmpty());
}

TEST_F(SafetensorsSourceTest, APartOfAModelByItselfIsNoted) {
  const std::string path = Write("model-00001-of-00002.safetensors", OneTensor("a"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(path));
  EXPECT_THAT(source->layout().notes, ElementsAre(HasSubstr("it is part 1 of 2 of a model: give the directory")));
}

TEST_F(SafetensorsSourceTest, ReadsEveryDTypeThatTheReferenceLibraryWrote) {
  ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(absl::StrCat(kTestData, "all_dtypes.safetensors")));
  EXPECT_EQ(source->format(), "safetensors");
  EXPECT_EQ(source->step(), -1);
  EXPECT_EQ(source->world_size(), 1);
  EXPECT_EQ(source->metadata().at("purpose"), "one tensor of each dtype");
  EXPECT_EQ(source->contents().entries().size(), 15);
  const ShardedTensor* empty = source->contents().FindTensor(StateKey::Model("c.empty"));
  ASSERT_NE(empty, nullptr);
  EXPECT_EQ(empty->shape, Shape({0, 4}));
  EXPECT_TRUE(empty->shards.empty());
  int64_t numbers[11];
  ASSERT_OK(source->Read(StateKey::Model("b.int64"), {0, 11}, numbers));
  int8_t same_numbers[11];
  ASSERT_OK(source->Read(StateKey::Model("b.int8"), {0, 11}, same_numbers));
  int64_t two[2];
  ASSERT_OK(source->Read(StateKey::Model("b.int64"), {3, 5}, two));
  EXPECT_EQ(two[0], numbers[3]);
  EXPECT_EQ(two[1], numbers[4]);
}

TEST_F(SafetensorsSourceTest, AFileThatIsNotThereIsNotFound) {
  EXPECT_THAT(OpenSafetensorsSource(Path("none")), StatusIs(StatusCode::kNotFound, HasSubstr("/none")));
}

TEST_F(SafetensorsSourceTest, AFileHasAtLeastEightBytes) {
  EXPECT_THAT(
      OpenSafetensorsSource(Write("short", "1234567")),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("has 7 bytes, expected at least 8"), HasSubstr("/short"))));
  EXPECT_THAT(OpenSafetensorsSource(Write("empty", "")), StatusIs(StatusCode::kDataLoss, HasSubstr("has 0 bytes")));
}

TEST_F(SafetensorsSourceTest, TheHeaderLengthIsBounded) {
  EXPECT_THAT(OpenSafetensorsSource(Write("a", File(100'000'001, "{}"))),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("header length is 100000001, more than safetensors' limit of 100000000")));
  EXPECT_THAT(OpenSafetensorsSource(Write("a", File(~uint64_t{0}, "{}"))),
              StatusIs(StatusCode::kDataLoss, HasSubstr("18446744073709551615")));
}

TEST_F(SafetensorsSourceTest, TheHeaderEndsInsideTheFile) {
  EXPECT_THAT(OpenSafetensorsSource(Write("a", File(3, "{}"))),
              StatusIs(StatusCode::kDataLoss, HasSubstr("the header ends at byte 11, but the file has 10 bytes")));
}

TEST_F(SafetensorsSourceTest, ErrorsOfTheHeaderNameTheFile) {
  EXPECT_THAT(OpenSafetensorsSource(Write("model.safetensors", OneTensor("w") + "x")),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("bytes [3, 4)"), HasSubstr("/model.safetensors"))));
}

TEST_F(SafetensorsSourceTest, EveryTruncationIsAnError) {
  const std::string whole = ReadFile(absl::StrCat(kTestData, "all_dtypes.safetensors"));
  ASSERT_GT(whole.size(), 1000);
  const std::string path = Write("a", whole);
  for (size_t size = whole.size(); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(OpenSafetensorsSource(path), StatusIs(StatusCode::kDataLoss)) << size;
  }
}

TEST_F(SafetensorsSourceTest, ANamedPipeDoesNotBlock) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(OpenSafetensorsSource(Path("pipe")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
}

TEST_F(SafetensorsSourceTest, ADirectoryNeedsNoIndexForOneFile) {
  EXPECT_THAT(IsHuggingFaceDirectory(directory_), IsOkAndHolds(false));
  Write("model.safetensors", OneTensor("w"));
  EXPECT_THAT(IsHuggingFaceDirectory(directory_), IsOkAndHolds(true));
  ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(directory_));
  EXPECT_NE(source->contents().FindTensor(StateKey::Model("w")), nullptr);
}

TEST_F(SafetensorsSourceTest, AnIndexJoinsFiles) {
  ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(absl::StrCat(kTestData, "hf_sharded")));
  std::ifstream text(absl::StrCat(kTestData, "hf_sharded/", kHuggingFaceIndexName));
  ASSERT_OK_AND_ASSIGN(const HuggingFaceIndex index,
                       ParseHuggingFaceIndex(std::string(std::istreambuf_iterator<char>(text), {})));
  EXPECT_EQ(source->contents().entries().size(), index.weight_map.size());
  for (const auto& [name, file] : index.weight_map) {
    EXPECT_NE(source->contents().FindTensor(StateKey::Model(name)), nullptr) << name;
  }
}

// HuggingFaceStorageWriter's parts have the offsets of their tensors, and none has the whole shapes.
TEST_F(SafetensorsSourceTest, ARanksPartOfAModelIsNotTakenForAModel) {
  const std::string part = File(R"({"__metadata__":{"DCP_SHARDING_INFO":"{}","format":"pt"},
                                    "w":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                                "x");
  for (const char* name : {"shard-00001-model-00001-of-00001.safetensors", "renamed.safetensors"}) {
    EXPECT_THAT(OpenSafetensorsSource(Write(name, part)),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(name), HasSubstr("one rank's part of a model by HuggingFaceStorageWriter"))));
  }
  // Without save_distributed there is one part, with an index. A copy of it is no part.
  Write("model-00001-of-00001.safetensors", part);
  Write(kHuggingFaceIndexName, R"({"weight_map":{"w":"model-00001-of-00001.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(directory_));
  EXPECT_THAT(source->metadata(), ElementsAre(Pair("format", "pt")));
}

TEST_F(SafetensorsSourceTest, AnIndexMayHaveTheNameOfItsModel) {
  Write("diffusion_pytorch_model-00001-of-00001.safetensors", OneTensor("w"));
  Write("diffusion_pytorch_model.safetensors.index.json",
        R"({"weight_map":{"w":"diffusion_pytorch_model-00001-of-00001.safetensors"}})");
  EXPECT_THAT(IsHuggingFaceDirectory(directory_), IsOkAndHolds(true));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(directory_));
  EXPECT_NE(source->contents().FindTensor(StateKey::Model("w")), nullptr);
  Write("other.safetensors.index.json", "{}");
  EXPECT_THAT(IsHuggingFaceDirectory(directory_), IsOkAndHolds(false));
}

class HuggingFaceIndexTest : public SafetensorsSourceTest {
 protected:
  // Opens the directory with this weight_map.
  absl::Status Open(const std::string& weight_map) {
    Write(kHuggingFaceIndexName, absl::StrCat(R"({"metadata":{"total_size":6},"weight_map":)", weight_map, "}"));
    return OpenSafetensorsSource(directory_).status();
  }
};

TEST_F(HuggingFaceIndexTest, FilesAreInTheSameDirectory) {
  Write("1.safetensors", OneTensor("a"));
  EXPECT_OK(Open(R"({"a":"1.safetensors"})"));
  for (const char* file :
       {"../1.safetensors", "/etc/passwd", "sub/1.safetensors", "", ".", "..", "1.safetensors\\u0000x"}) {
    EXPECT_THAT(Open(absl::StrCat("{\"a\":\"", file, "\"}")),
                StatusIs(StatusCode::kDataLoss,
                         AllOf(HasSubstr("tensor \"a\": weight_map names"),
                               HasSubstr("expected a file of the same directory"), HasSubstr(kHuggingFaceIndexName))))
        << file;
  }
}

TEST_F(HuggingFaceIndexTest, ATensorThatItsFileLacksIsAnError) {
  Write("1.safetensors", OneTensor("a"));
  EXPECT_THAT(Open(R"({"a":"1.safetensors","b":"1.safetensors"})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"b\" is missing in \"1.safetensors\"")));
}

TEST_F(HuggingFaceIndexTest, ATensorThatTheIndexLacksIsAnError) {
  Write("1.safetensors", OneTensor("a"));
  Write("2.safetensors", OneTensor("b"));
  EXPECT_OK(Open(R"({"a":"1.safetensors","b":"2.safetensors"})"));
  Write("2.safetensors", File(R"({"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
                                  "c":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
                              "xy"));
  EXPECT_THAT(
      Open(R"({"a":"1.safetensors","b":"2.safetensors"})"),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("tensor \"c\" of "), HasSubstr("missing in the weight_map"))));
}

TEST_F(HuggingFaceIndexTest, ATensorInTwoFilesIsAnError) {
  Write("1.safetensors", OneTensor("a"));
  Write("2.safetensors", File(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
                                  "b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
                              "xy"));
  EXPECT_THAT(Open(R"({"a":"1.safetensors","b":"2.safetensors"})"),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("tensor \"a\" is in two files"),
                                                    HasSubstr("1.safetensors"), HasSubstr("2.safetensors"))));
}

TEST_F(HuggingFaceIndexTest, AFileThatIsNotThereIsNotFound) {
  EXPECT_THAT(Open(R"({"a":"3.safetensors"})"),
              StatusIs(StatusCode::kNotFound,
                       AllOf(HasSubstr("3.safetensors is missing, in which "), HasSubstr(" places 1 tensor: "))));
}

TEST_F(HuggingFaceIndexTest, TheWeightMapIsAnObjectOfNames) {
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kDataLoss, HasSubstr("weight_map is a number, expected an object")));
  EXPECT_THAT(Open(R"({"a":["x"]})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("tensor \"a\": weight_map names an array")));
  EXPECT_THAT(Open("{}"), StatusIs(StatusCode::kDataLoss, HasSubstr("names no tensor")));
  Write(kHuggingFaceIndexName, R"({"metadata":{}})");
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, HasSubstr("weight_map is missing")));
  Write(kHuggingFaceIndexName, R"(["weight_map"])");
  EXPECT_THAT(OpenSafetensorsSource(directory_), StatusIs(StatusCode::kDataLoss, HasSubstr("expected an object")));
}

TEST_F(HuggingFaceIndexTest, DuplicateNamesAreRefused) {
  EXPECT_THAT(Open(R"({"a":"1.safetensors","a":"2.safetensors"})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"a\" appears twice")));
}

TEST_F(HuggingFaceIndexTest, IsWrittenAsTransformersWritesIt) {
  HuggingFaceIndex index;
  index.total_size = 12;
  index.weight_map = {{"b", "2"}, {"a", "1"}};
  EXPECT_EQ(
      EncodeHuggingFaceIndex(index).value(),
      "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"1\",\n    \"b\": \"2\"\n"
      "  }\n}\n");
}

}  // namespace
}  // namespace fsdp
