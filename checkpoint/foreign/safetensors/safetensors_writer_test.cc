// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_writer.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTestData[] = "checkpoint/testdata/";

class SafetensorsWriterTest : public testing::Test {
 protected:
  SafetensorsWriterTest() : directory_(absl::StrCat(testing::TempDir(), "/writer_test")) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  // The names in the test's directory, hidden files too.
  std::vector<std::string> Files(const std::string& sub = "") const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Path(sub))) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string directory_;
};

PayloadReader ReadFrom(const TensorSource& source) {
  return
      [&source](const StateKey& key, const Interval& interval, void* out) { return source.Read(key, interval, out); };
}

// Contents of uint8 tensors with these numbers of elements, named "0", "1", ...
StateDict Bytes(const std::vector<int64_t>& sizes) {
  StateDict contents;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ShardedTensor tensor;
    tensor.dtype = DType::kUInt8;
    tensor.shape = {sizes[i]};
    contents.Set(StateKey::Model(absl::StrCat(i)), tensor);
  }
  return contents;
}

absl::Status ReadZeros(const StateKey&, const Interval& interval, void* out) {
  std::fill_n(static_cast<char*>(out), interval.size(), '\0');
  return absl::OkStatus();
}

TEST_F(SafetensorsWriterTest, WritesWhatTheReferenceLibraryWrites) {
  for (const char* name : {"all_dtypes.safetensors", "hf_sharded/model-00001-of-00002.safetensors"}) {
    const std::string original = absl::StrCat(kTestData, name);
    ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(original));
    for (const int threads : {1, 3}) {
      SafetensorsOptions options;
      options.metadata = source->metadata();
      options.overwrite = true;
      options.io_threads = threads;
      ASSERT_OK(WriteSafetensors(Path("copy"), source->contents(), ReadFrom(*source), options));
      EXPECT_EQ(ReadFile(Path("copy")), ReadFile(original)) << name;
    }
  }
  EXPECT_THAT(Files(), ElementsAre("copy"));
}

TEST_F(SafetensorsWriterTest, PiecesCutTensorsAnywhere) {
  StateDict contents = Bytes({100'001, 1, 0, 300'000});
  ShardedTensor wide;
  wide.dtype = DType::kFloat64;
  wide.shape = {20'001};
  contents.Set(StateKey::Model("wide"), wide);
  const PayloadReader read = [](const StateKey& key, const Interval& interval, void* out) {
    if (key.fqn == "wide") {
      for (int64_t i = 0; i < interval.size(); ++i)
        static_cast<double*>(out)[i] = static_cast<double>(interval.begin + i);
    } else {
      for (int64_t i = 0; i < interval.size(); ++i) static_cast<char*>(out)[i] = static_cast<char>(interval.begin + i);
    }
    return absl::OkStatus();
  };
  SafetensorsOptions options;
  options.buffer_bytes = 1;  // the minimum
  ASSERT_OK(WriteSafetensors(Path("a"), contents, read, options));
  ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(Path("a")));
  std::vector<double> numbers(20'001);
  ASSERT_OK(source->Read(StateKey::Model("wide"), {0, 20'001}, numbers.data()));
  for (int i = 0; i < 20'001; ++i) ASSERT_EQ(numbers[i], i);
  std::string bytes(300'000, '\0');
  ASSERT_OK(source->Read(StateKey::Model("3"), {0, 300'000}, bytes.data()));
  for (int i = 0; i < 300'000; ++i) ASSERT_EQ(bytes[i], static_cast<char>(i));
}

TEST_F(SafetensorsWriterTest, WritesAStateDictInMemoryWithoutOptimizerExtrasAndAliases) {
  float values[6] = {1, 2, 3, 4, 5, 6};
  const Tensor whole(Buffer::Unowned(values, sizeof(values)), DType::kFloat32, {2, 3});
  StateDict state;
  state.Set(StateKey::Model("wte"), ShardedTensor::Whole(whole));
  state.Set(StateKey::Model("head"), ShardedTensor::Whole(whole));
  state.Set(StateKey::OptimState("wte", "exp_avg"), ShardedTensor::Whole(whole));
  state.Set(StateKey::Extra("step"), std::string("7"));
  state.aliases["head"] = "wte";
  ASSERT_OK(WriteSafetensors(Path("a"), state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(auto source, OpenSafetensorsSource(Path("a")));
  ASSERT_EQ(source->contents().entries().size(), 1);
  EXPECT_EQ(source->metadata().at("format"), "pt");
  float read[6];
  ASSERT_OK(source->Read(StateKey::Model("wte"), {0, 6}, read));
  EXPECT_THAT(read, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(SafetensorsWriterTest, ElementsThatAreNotInMemoryAreAnError) {
  StateDict state = Bytes({4});
  EXPECT_THAT(
      WriteSafetensors(Path("a"), state, ReadFromMemory(state)),
      StatusIs(StatusCode::kFailedPrecondition, HasSubstr("tensor \"model/0\": this process does not hold element 0")));
}

TEST_F(SafetensorsWriterTest, FilesThatACrashLeftAreRemoved) {
  fs::create_directories(Path(".a.new"));
  std::ofstream(Path(".a.new/model.safetensors")) << "left";
  std::ofstream(Path(".a.lock"));
  std::ofstream(Path(".b.new")) << "another's";
  ASSERT_OK(WriteSafetensors(Path("a"), Bytes({1}), ReadZeros));
  EXPECT_THAT(Files(), ElementsAre(".b.new", "a"));
}

TEST_F(SafetensorsWriterTest, AFileThatNoCrashLeftIsNotRemoved) {
  for (const std::string hidden : {".a.new", ".a.probe"}) {
    std::ofstream(Path(hidden)) << "the user's";
    for (const bool overwrite : {false, true}) {
      SafetensorsOptions options;
      options.overwrite = overwrite;
      EXPECT_THAT(WriteSafetensors(Path("a"), Bytes({1}), ReadZeros, options),
                  StatusIs(StatusCode::kAlreadyExists, HasSubstr(hidden + " exists, and was not left by a write of ")));
      EXPECT_THAT(WriteHuggingFaceDirectory(Path("a"), Bytes({1}), ReadZeros, {options, 1 << 30}),
                  StatusIs(StatusCode::kAlreadyExists));
    }
    EXPECT_EQ(ReadFile(Path(hidden)), "the user's");
    EXPECT_THAT(Files(), ElementsAre(hidden));
    fs::remove(Path(hidden));
  }
}

TEST_F(SafetensorsWriterTest, OneProcessAtATimeMakesAName) {
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    EXPECT_THAT(WriteSafetensors(Path("a"), Bytes({1}), ReadZeros),
                StatusIs(StatusCode::kUnavailable, HasSubstr("/a is being made by another process")));
    return ReadZeros(key, interval, out);
  };
  ASSERT_OK(WriteSafetensors(Path("a"), Bytes({1}), read));
  EXPECT_THAT(Files(), ElementsAre("a"));
}

TEST_F(SafetensorsWriterTest, ADirectoryOfOneFileHasNoIndex) {
  ASSERT_OK(WriteHuggingFaceDirectory(Path("d"), Bytes({3, 4}), ReadZeros, {}));
  EXPECT_THAT(Files("d"), ElementsAre("model.safetensors"));
}

TEST_F(SafetensorsWriterTest, ADirectoryIsSplitAsHuggingFaceSplitsIt) {
  HuggingFaceOptions options;
  options.max_shard_size = 10;
  // 0 and 1 fill a file; 2 exceeds the limit; 3 does not fit into the file of 0 and 1.
  ASSERT_OK(WriteHuggingFaceDirectory(Path("d"), Bytes({4, 6, 11, 5, 0}), ReadZeros, options));
  EXPECT_THAT(Files("d"), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors", kHuggingFaceIndexName));
  ASSERT_OK_AND_ASSIGN(const HuggingFaceIndex index,
                       ParseHuggingFaceIndex(ReadFile(Path("d/model.safetensors.index.json"))));
  EXPECT_EQ(index.weight_map.at("2"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.weight_map.at("0"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index.weight_map.at("1"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index.weight_map.at("3"), "model-00003-of-00003.safetensors");
  EXPECT_EQ(index.weight_map.at("4"), "model-00003-of-00003.safetensors");
  EXPECT_THAT(ReadFile(Path("d/model.safetensors.index.json")), HasSubstr("\"total_size\": 26"));
  EXPECT_OK(OpenSafetensorsSource(Path("d")));
}

TEST_F(SafetensorsWriterTest, ADirectoryIsReplacedWhole) {
  ASSERT_OK(WriteHuggingFaceDirectory(Path("d"), Bytes({4, 6}), ReadZeros, {{}, 6}));
  EXPECT_EQ(Files("d").size(), 3);
  EXPECT_THAT(WriteHuggingFaceDirectory(Path("d/"), Bytes({3}), ReadZeros, {}), StatusIs(StatusCode::kAlreadyExists));
  SafetensorsOptions overwrite;
  overwrite.overwrite = true;
  ASSERT_OK(WriteHuggingFaceDirectory(Path("d/"), Bytes({3}), ReadZeros, {overwrite, 6}));
  EXPECT_THAT(Files("d"), ElementsAre("model.safetensors"));
  EXPECT_THAT(Files(), ElementsAre("d"));
}

}  // namespace
}  // namespace fsdp
