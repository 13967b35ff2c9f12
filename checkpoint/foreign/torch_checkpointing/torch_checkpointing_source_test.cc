// SPDX-License-Identifier: Apache-2.0
//
// Directories that the real library wrote, damaged and rearranged, and small ones with parts in safetensors files,
// whose metadata.pkl a test can make say anything. checkpoint/conformance reads the whole ones.
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string TestData(const std::string& name) {
  return absl::StrCat("checkpoint/foreign/torch_checkpointing/testdata/", name, "/ckpt");
}

// A copy of a checkpoint, to be damaged.
std::string CopyOf(const std::string& name) {
  const std::string copy = absl::StrCat(NewTestDirectory(), "/ckpt");
  fs::copy(TestData(name), copy, fs::copy_options::recursive);
  return copy;
}

TEST(TorchCheckpointingTest, AFileOfOneRankIsRefusedByWhatItIs) {
  for (const char* part : {"fsdp2_w2/ckpt/model_0.pt", "fsdp2_w2_safetensors/ckpt/shards/model-1.safetensors"}) {
    EXPECT_THAT(OpenTensorSource(absl::StrCat("checkpoint/foreign/torch_checkpointing/testdata/", part)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("is one rank's part of a checkpoint of")));
  }
  // Also away from its checkpoint, which only a file of torch says.
  const std::string copy = NewTestDirectory() + "/model_0.pt";
  fs::copy(TestData("fsdp2_w2") + "/model_0.pt", copy);
  EXPECT_THAT(
      OpenTensorSource(copy),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr("model_0.pt: \"embed.weight\" is the part [6, 6] of a tensor [11, 6], (Shard(0)) "
                               "over the ranks [0, 1] as dp 2, that rank 0 has"),
                     HasSubstr("give the directory"))));
}

TEST(TorchCheckpointingTest, FilesThatRanksOfFsdp2SavedThemselvesAreJoined) {
  const std::string directory = NewTestDirectory();
  for (const int rank : {0, 1}) {
    fs::copy(absl::StrCat(TestData("fsdp2_w2"), "/model_", rank, ".pt"), absl::StrCat(directory, "/rank", rank, ".pt"));
  }
  ASSERT_OK_AND_ASSIGN(const auto joined, OpenTensorSource(directory));
  ASSERT_OK_AND_ASSIGN(const auto whole, OpenTensorSource(TestData("fsdp2_w2")));
  EXPECT_EQ(joined->format(), "torch_checkpointing");
  EXPECT_EQ(joined->contents().entries().size(), 13u);
  for (const auto& [key, value] : joined->contents().entries()) {
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*joined, key));
    ASSERT_OK_AND_ASSIGN(const std::string expected, ReadWhole(*whole, key));
    EXPECT_EQ(bytes, expected) << key.ToString();
  }
}

TEST(TorchCheckpointingTest, ASeriesOfCheckpointsIsNotARun) {
  const std::string directory = NewTestDirectory();
  for (const int epoch : {0, 1}) {
    fs::copy(absl::StrCat(TestData("fsdp2_w2"), "/model_", epoch, ".pt"),
             absl::StrCat(directory, "/epoch_", epoch, ".pt"));
  }
  EXPECT_THAT(OpenTensorSource(directory), StatusIs(StatusCode::kInvalidArgument, HasSubstr("2 files of weights")));
}

TEST(TorchCheckpointingTest, SwappedFilesOfRanksAreNoticed) {
  const std::string copy = CopyOf("fsdp2_w2");
  fs::rename(copy + "/model_0.pt", copy + "/x");
  fs::rename(copy + "/model_1.pt", copy + "/model_0.pt");
  fs::rename(copy + "/x", copy + "/model_1.pt");
  EXPECT_THAT(
      OpenTensorSource(copy),
      StatusIs(StatusCode::kDataLoss, HasSubstr("of model_0.pt was written by rank 1, but the file is named for "
                                                "rank 0: files of ranks were swapped or renamed")));
}

TEST(TorchCheckpointingTest, AMissingFileOfARankIsNamed) {
  const std::string with_metadata = CopyOf("fsdp2_w2");
  fs::remove(with_metadata + "/optimizer_1.pt");
  EXPECT_THAT(OpenTensorSource(with_metadata), StatusIs(StatusCode::kNotFound, HasSubstr("optimizer_1.pt")));
  const std::string without = CopyOf("no_resharder_w2");
  fs::remove(without + "/optimizer_1.pt");
  EXPECT_THAT(
      OpenTensorSource(without),
      StatusIs(StatusCode::kDataLoss, HasSubstr("is without the part of rank 1: the file of that rank is missing")));
  const std::string third = CopyOf("no_resharder_w2");
  fs::copy(third + "/model_1.pt", third + "/model_2.pt");
  EXPECT_THAT(OpenTensorSource(third), StatusIs(StatusCode::kDataLoss, HasSubstr("has no optimizer_2.pt")));
}

TEST(TorchCheckpointingTest, AnUnfinishedSaveIsRefusedByItsName) {
  const std::string directory = NewTestDirectory() + "/tmp_step_3";
  fs::copy(TestData("fsdp2_w2"), directory);
  EXPECT_THAT(OpenTensorSource(directory),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is an unfinished save of torch_checkpointing, which it "
                                                               "renames to step_3 at the end")));
}

TEST(TorchCheckpointingTest, PartsInSafetensorsAreNothingWithoutTheirMetadata) {
  const std::string copy = CopyOf("fsdp2_w2_safetensors");
  fs::remove(copy + "/metadata.pkl");
  EXPECT_THAT(OpenTensorSource(copy),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("in shards/, such as model-0.safetensors"), HasSubstr("no metadata.pkl"))));
}

TEST(TorchCheckpointingTest, WhatEachRankHasForItselfIsKeptByRank) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TestData("fsdp2_w3_named_bf16")));
  const std::string* const config = source->contents().FindText(StateKey::Extra("config"));
  ASSERT_NE(config, nullptr);
  EXPECT_EQ(ordered_json::parse(*config)["rank_2"]["rank"], 2);
  const std::string* const blob = source->contents().FindText(StateKey::Extra("blob"));
  ASSERT_NE(blob, nullptr);
  EXPECT_THAT(*blob, HasSubstr("rank_1"));
  EXPECT_THAT(source->layout().notes, IsEmpty());
}

// In this one tensor-parallel ranks had other data, so that their copies drifted apart.
TEST(TorchCheckpointingTest, CopiesThatDifferAreNoted) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TestData("fsdp2_tp_w4_strided")));
  EXPECT_THAT(
      source->layout().notes,
      Contains(AllOf(HasSubstr("copies of tensors, such as \"model.embed.weight\" of model_1.pt and model_0.pt, "
                               "differ between ranks: the first rank's are read"))));
}

// ---- small directories

std::string Safetensors(const std::vector<std::pair<std::string, Shape>>& tensors, float first) {
  SafetensorsHeader header;
  std::string payload;
  for (const auto& [name, shape] : tensors) {
    SafetensorsEntry entry = {name, DType::kFloat32, shape};
    entry.begin = static_cast<int64_t>(payload.size());
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const float value = first++;
      payload.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    entry.end = static_cast<int64_t>(payload.size());
    header.entries.push_back(entry);
  }
  return *EncodeSafetensorsHeader(header) + payload;
}

std::string PickleOf(const ordered_json& json) {
  PickleWriter writer;
  writer.Python(json);
  return std::move(writer).Finish();
}

ordered_json Mesh(const std::vector<int>& ranks) {
  return {{"device_type", "cuda"}, {"mesh_shape", {ranks.size()}}, {"mesh_data", ranks}, {"mesh_dim_names", nullptr}};
}

ordered_json Record(const std::vector<int>& shape, const std::vector<int>& ranks, const ordered_json& placement) {
  return {{"sharding_metadata",
           {{"type", "DTensorShardingMetadata"},
            {"data",
             {{"global_shape", shape},
              {"dtype", "torch.float32"},
              {"stride", shape},
              {"mesh_spec", Mesh(ranks)},
              {"placements", ordered_json::array({placement})}}}}},
          {"ranks", ranks}};
}

ordered_json LayoutOf(int rank) {
  return {{"file_path", absl::StrCat("model-", rank, ".safetensors")},
          {"serialization_format", {{"type", "SafetensorsSerialization"}}}};
}

// Two ranks, which have "w" with 2 and 1 rows of 3.
class TwoRanks {
 public:
  TwoRanks() {
    WriteAll(directory_ + "/model-0.safetensors", Safetensors({{"w", {2, 3}}}, 0));
    WriteAll(directory_ + "/model-1.safetensors", Safetensors({{"w", {1, 3}}}, 6));
  }

  ordered_json metadata = {
      {"metadata",
       {{"model",
         {{"nested_path_to_metadata",
           {{"[\"w\"]", ordered_json::array({Record({3, 3}, {0, 1}, {{"type", "Shard"}, {"dim", 0}})})}}},
          {"rank_to_layout_info", {{"0", LayoutOf(0)}, {"1", LayoutOf(1)}}}}}}},
      {"world_size", 2},
      {"version", "2.0"}};

  ordered_json& paths() { return metadata["metadata"]["model"]["nested_path_to_metadata"]; }
  ordered_json& data() { return paths()["[\"w\"]"][0]["sharding_metadata"]["data"]; }
  const std::string& directory() const { return directory_; }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open() const {
    WriteAll(directory_ + "/metadata.pkl", PickleOf(metadata));
    return OpenTensorSource(directory_);
  }

 private:
  const std::string directory_ = NewTestDirectory();
};

std::vector<float> Elements(const TensorSource& source, const std::string& name) {
  const absl::StatusOr<std::string> bytes = ReadWhole(source, StateKey::Model(name));
  EXPECT_OK(bytes);
  std::vector<float> elements(bytes.value_or("").size() / sizeof(float));
  std::memcpy(elements.data(), bytes.value_or("").data(), elements.size() * sizeof(float));
  return elements;
}

TEST(TorchCheckpointingTest, PartsAreJoinedAsTheRecordsSay) {
  ASSERT_OK_AND_ASSIGN(const auto source, TwoRanks().Open());
  EXPECT_THAT(Elements(*source, "w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(source->world_size(), 2);
}

TEST(TorchCheckpointingTest, Version1HasItemsInItsPaths) {
  TwoRanks ranks;
  const ordered_json records = ranks.paths()["[\"w\"]"];
  ranks.metadata = {
      {"metadata", {{"[\"model\",\"w\"]", records}}},
      {"rank_to_layout_info_mappings", {{"0", {{"model", LayoutOf(0)}}}, {"1", {{"model", LayoutOf(1)}}}}},
      {"world_size", 2}};
  ASSERT_OK_AND_ASSIGN(const auto source, ranks.Open());
  EXPECT_THAT(Elements(*source, "w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

ordered_json Shards(int rank, const ordered_json& starts, const ordered_json& locals, const ordered_json& sizes) {
  return {{"sharding_metadata",
           {{"type", "default_tensor_v1"},
            {"data",
             {{"global_shape", {3, 3}},
              {"global_offsets", starts},
              {"local_offsets", locals},
              {"local_sizes", sizes},
              {"dtype", "torch.float32"}}}}},
          {"ranks", {rank}}};
}

// Rank 0 has 0 1 2 / 3 4 5, rank 1 has 6 7 8.
TEST(TorchCheckpointingTest, BoxesOfLocalTensorsAreJoined) {
  TwoRanks ranks;
  ordered_json& records = ranks.paths()["[\"w\"]"];
  records = ordered_json::array(
      {Shards(0, {{0, 0}, {0, 1}}, {{0, 2}, {0, 0}}, {{2, 1}, {2, 2}}),
       Shards(1, ordered_json::array({{2, 0}}), ordered_json::array({{0, 0}}), ordered_json::array({{1, 3}}))});
  {
    ASSERT_OK_AND_ASSIGN(const auto source, ranks.Open());
    EXPECT_THAT(Elements(*source, "w"), ElementsAre(2, 0, 1, 5, 3, 4, 6, 7, 8));
  }
  records[1] = Shards(1, ordered_json::array({{2, 0}}), ordered_json::array({{0, 0}}), ordered_json::array({{1, 2}}));
  EXPECT_THAT(ranks.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("1 of 9 elements are in no part")));
  records[1] = Shards(1, ordered_json::array({{1, 0}}), ordered_json::array({{0, 0}}), ordered_json::array({{1, 3}}));
  EXPECT_THAT(ranks.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("are in two parts")));
  records[1] = Shards(1, ordered_json::array({{1, 0}}), ordered_json::array({{1, 0}}), ordered_json::array({{1, 3}}));
  EXPECT_THAT(ranks.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("is not the part of [3, 3]")));
}

TEST(TorchCheckpointingTest, RecordsThatTheFilesContradictAreDamage) {
  struct Case {
    std::string what;
    std::function<void(TwoRanks&)> damage;
  };
  const std::vector<Case> cases = {
      {"is not the part of [4, 3]",
       [](TwoRanks& ranks) {
         ranks.data()["global_shape"] = {4, 3};
       }},
      {"is not the part of [3, 3]", [](TwoRanks& ranks) { ranks.data()["dtype"] = "torch.int32"; }},
      {"is not the part of [3, 3]", [](TwoRanks& ranks) { ranks.data()["placements"][0]["dim"] = 1; }},
      {"is not the part of [3, 3]",
       [](TwoRanks& ranks) {
         ranks.data()["placements"][0] = {{"type", "Replicate"}};
       }},
      {"Shard(2) of a tensor of shape", [](TwoRanks& ranks) { ranks.data()["placements"][0]["dim"] = 2; }},
      {"a record has other ranks than its mesh", [](TwoRanks& ranks) { ranks.paths()["[\"w\"]"][0]["ranks"] = {0}; }},
      {"the rank 1 twice",
       [](TwoRanks& ranks) {
         ranks.data()["mesh_spec"]["mesh_data"] = {1, 1};
       }},
      {"\"model.v\" is in the files of 0 ranks",
       [](TwoRanks& ranks) { ranks.paths()["[\"v\"]"] = ranks.paths()["[\"w\"]"]; }},
      {"no file of rank 1",
       [](TwoRanks& ranks) { ranks.metadata["metadata"]["model"]["rank_to_layout_info"].erase("1"); }},
      {"is named twice",
       [](TwoRanks& ranks) { ranks.metadata["metadata"]["model"]["rank_to_layout_info"]["1"] = LayoutOf(0); }},
      {"is not in the directory",
       [](TwoRanks& ranks) {
         ranks.metadata["metadata"]["model"]["rank_to_layout_info"]["1"]["file_path"] = "../model-1.safetensors";
       }},
      {"is no list", [](TwoRanks& ranks) { ranks.paths()["w"] = ranks.paths()["[\"w\"]"]; }},
      {"a world_size of 0", [](TwoRanks& ranks) { ranks.metadata["world_size"] = 0; }},
      {"an integer from 0 to", [](TwoRanks& ranks) { ranks.metadata["world_size"] = int64_t{1} << 40; }},
  };
  for (const Case& test : cases) {
    TwoRanks ranks;
    test.damage(ranks);
    EXPECT_THAT(ranks.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr(test.what))) << test.what;
  }
}

TEST(TorchCheckpointingTest, WhatALaterReleaseWritesIsNamed) {
  struct Case {
    std::string what;
    std::function<void(TwoRanks&)> change;
  };
  const std::vector<Case> cases = {
      {"version \"3.0\"", [](TwoRanks& ranks) { ranks.metadata["version"] = "3.0"; }},
      {"a placement that is not known", [](TwoRanks& ranks) { ranks.data()["placements"][0]["type"] = "RaggedShard"; }},
      {"\"torch.float3\" is not a dtype", [](TwoRanks& ranks) { ranks.data()["dtype"] = "torch.float3"; }},
      {"the serialization format \"Arrow\"",
       [](TwoRanks& ranks) {
         ranks.metadata["metadata"]["model"]["rank_to_layout_info"]["0"]["serialization_format"]["type"] = "Arrow";
       }},
      {"the type of sharding_metadata \"ragged_v1\"",
       [](TwoRanks& ranks) { ranks.paths()["[\"w\"]"][0]["sharding_metadata"]["type"] = "ragged_v1"; }},
  };
  for (const Case& test : cases) {
    TwoRanks ranks;
    test.change(ranks);
    EXPECT_THAT(ranks.Open(), StatusIs(StatusCode::kInvalidArgument, HasSubstr(test.what))) << test.what;
  }
}

TEST(TorchCheckpointingTest, MetadataThatCallsIsRefused) {
  const TwoRanks ranks;
  ASSERT_OK(ranks.Open());
  WriteAll(ranks.directory() + "/metadata.pkl",
           "\x80\x04\x8c\x08metadata\x8c\x0aworld_size\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.");
  EXPECT_THAT(OpenTensorSource(ranks.directory()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("it wants \"os.system\"")));
}

}  // namespace
}  // namespace fsdp
