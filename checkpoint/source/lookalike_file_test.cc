// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/lookalike_file.h"

#include <filesystem>
#include <map>
#include <set>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct Example {
  std::string row;
  std::string bytes;
  std::string message;
};

std::vector<Example> Examples() {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:3f\nsize 548105171\n";
  std::string tar(512, '\0');
  tar.replace(0, 9, "model.pth");
  tar.replace(257, 5, "ustar");
  const std::string of_torch = std::string("sys_info") + std::string(249, '\0') + tar.substr(257);
  return {
      {"empty", "", "has 0 bytes"},
      {"Git LFS pointer", pointer,
       "is a Git LFS pointer to a file of 548105171 bytes, which was not downloaded: run "
       "`git lfs pull`"},
      {"Git LFS pointer", "version https://git-lfs.github.com/spec/v9\n", "is a Git LFS pointer to a file, which"},
      {"page", "<!DOCTYPE html>\n<html>", "is a page of HTML or XML"},
      {"page", "\xEF\xBB\xBF\n <HTML><body>", "is a page of HTML or XML"},
      {"page", "<?xml version=\"1.0\"?><Error><Code>AccessDenied", "is a page of HTML or XML"},
      {"JSON", "{\"error\": \"Repository not found\"}", "is a text of JSON"},
      {"JSON", "\n[1, 2, 3, 4]", "is a text of JSON"},
      {"packed", std::string("\x1F\x8B\x08\0\0\0\0\0\x02\x03", 10),
       "is packed by gzip: unpack it first, `gunzip FILE`"},
      {"packed", "BZh91AY&SY....", "bunzip2"},
      {"packed", std::string("\xFD\x37zXZ\0\0\x04", 8), "unxz"},
      {"packed", "\x28\xB5\x2F\xFD\x24\x01\x02\x03\x04", "unzstd"},
      {"packed", "7z\xBC\xAF\x27\x1C", "7z x"},
      {"packed", "Rar!\x1A\x07", "unrar"},
      {"tar of torch", of_torch, "was written by torch 0.1: load it with torch.load"},
      {"tar", tar, "`tar xf FILE`"},
      {"text", "Entry not found", "is a text that begins with \"Entry not found\", not weights"},
      {"text", "Invalid username or password.\n", "download the file again"},
      {"zeros", std::string(1000, '\0'), "begins with 512 zeros"},
  };
}

TEST(LookalikeFileTest, EveryRowIsRecognisedByItsBytes) {
  std::set<std::string> tested;
  for (const Example& example : Examples()) {
    const std::string path = NewTestDirectory() + "/model.safetensors";
    WriteAll(path, example.bytes);
    EXPECT_THAT(CheckIsNoLookalike(path),
                StatusIs(testing::_, AllOf(HasSubstr(path + " "), HasSubstr(example.message))))
        << example.row;
    tested.insert(example.row);
  }
  for (const LookalikeFile& file : LookalikeFiles()) EXPECT_EQ(tested.count(std::string(file.name)), 1) << file.name;
}

// By every name, because a reader is chosen by name if the bytes say nothing; the message is the same.
TEST(LookalikeFileTest, EveryReaderSaysWhatItIs) {
  for (const Example& example : Examples()) {
    for (const char* name : {"model.safetensors", "model.pt", "pytorch_model.bin", "model", "x.npz", "x.ckpt"}) {
      const std::string path = NewTestDirectory() + "/" + name;
      WriteAll(path, example.bytes);
      EXPECT_THAT(OpenTensorSource(path), StatusIs(testing::_, HasSubstr(example.message))) << name;
    }
  }
}

TEST(LookalikeFileTest, APartOfACheckpointIsNamedToo) {
  const std::string pointer = Examples()[1].bytes;
  const std::map<std::string, std::string> indexes = {
      {"model.safetensors.index.json", "model-00001-of-00001.safetensors"},
      {"pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"}};
  for (const auto& [index, part] : indexes) {
    const std::string directory = NewTestDirectory();
    WriteAll(directory + "/" + index, R"({"weight_map": {"w": ")" + part + "\"}}");
    WriteAll(directory + "/" + part, pointer);
    EXPECT_THAT(OpenTensorSource(directory),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(part), HasSubstr("Git LFS pointer"))));
  }
  for (const char* name : {"model.safetensors", "pytorch_model.bin", ".metadata"}) {
    const std::string directory = NewTestDirectory();
    WriteAll(directory + "/" + name, pointer);
    EXPECT_THAT(OpenTensorSource(directory), StatusIs(testing::_, HasSubstr("Git LFS pointer"))) << name;
  }
}

// A name that says which part of a checkpoint the file is must not hide that it has no contents.
TEST(LookalikeFileTest, APointerAndAPageAreNamedUnderEveryNameOfAPart) {
  const std::string directory = NewTestDirectory();
  WriteAll(directory + "/model.safetensors", std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  for (const Example& example : Examples()) {
    if (example.row != "Git LFS pointer" && example.row != "page") continue;
    for (const char* name :
         {"model.safetensors.index.json", "config.json", "manifest.json", ".metadata", "__0_0.distcp", "common.pt",
          "manifest.ocdbt", "_METADATA", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "consolidated.00.pth",
          "shard-00001-model-00001-of-00001.safetensors", "x.gguf", "x.msgpack", "x.onnx", "x.keras", "x.weights.h5",
          "x.npy", "x.hdf5"}) {
      const std::string path = directory + "/" + name;
      WriteAll(path, example.bytes);
      EXPECT_THAT(OpenTensorSource(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   AllOf(HasSubstr(path + " is a"), HasSubstr(example.message))));
      std::filesystem::remove(path);
    }
  }
}

TEST(LookalikeFileTest, ATextBesideAModelThatIsAPointerIsNamedInANote) {
  const std::string directory = NewTestDirectory();
  WriteAll(directory + "/model.safetensors", std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  for (const char* name : {"config.json", "trainer_state.json"}) {
    WriteAll(directory + "/" + name, Examples()[1].bytes);
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory));
    EXPECT_THAT(source->layout().notes,
                ElementsAre(HasSubstr(directory + "/" + name + " is a Git LFS pointer to a file of 548105171 bytes")));
    std::filesystem::remove(directory + "/" + name);
  }
}

// The length of a safetensors header may be any eight bytes.
TEST(LookalikeFileTest, AHeaderLengthThatLooksLikeAnotherFileIsAHeaderLength) {
  for (const std::string start : {"\x1F\x8B\x08", "{\"a", "BZh", "[  "}) {
    const std::string head = start + std::string(8 - start.size(), '\0') + "{\"w\":";
    EXPECT_OK(CheckIsNoLookalike("x", {head, 1 << 20})) << start;
  }
}

TEST(LookalikeFileTest, AJsonFileOfJsonIsNone) {
  EXPECT_OK(CheckIsNoLookalike("model.safetensors.index.json", {"{\"weight_map\": 7}", 17}));
}

TEST(WeightFilesTest, TheOtherFilesOfADirectoryAreNamed) {
  const std::string directory = NewTestDirectory();
  EXPECT_THAT(WeightsBeside(directory, {}), IsEmpty());
  for (const char* name : {"model.safetensors", "optimizer.pt", "config.json", "rng_state_0.pth", ".pt"}) {
    WriteAll(directory + "/" + name, "x");
  }
  EXPECT_THAT(WeightsBeside(directory, {directory + "/model.safetensors"}),
              ElementsAre(HasSubstr("\"optimizer.pt\""), HasSubstr("\"rng_state_0.pth\"")));
  WriteAll(directory + "/random_states_0.pkl", "x");
  WriteAll(directory + "/scheduler_config.json", "x");
  for (const char* name : {"optimizer_0", "global_step500", "runs"}) {
    std::filesystem::create_directory(directory + "/" + name);
  }
  WriteAll(directory + "/optimizer_0/.metadata", "x");
  EXPECT_THAT(WeightsBeside(directory, {directory + "/model.safetensors"}),
              ElementsAre(HasSubstr("\"global_step500\" (a directory beside it: give its path"),
                          HasSubstr("\"optimizer.pt\""), HasSubstr("\"optimizer_0\" (a directory"),
                          HasSubstr("\"random_states_0.pkl\""), HasSubstr("\"rng_state_0.pth\"")));
  for (int i = 0; i < 20; ++i) WriteAll(directory + "/" + std::to_string(i) + ".bin", "x");
  EXPECT_THAT(WeightsBeside(directory, {}), SizeIs(17));
  EXPECT_EQ(WeightsBeside(directory, {}).back(), "10 more files beside it");
}

TEST(WeightFilesTest, SomeOfManyAreNamed) {
  EXPECT_EQ(SomeOf({"a"}), "a");
  EXPECT_EQ(SomeOf({"a", "b"}), "a and b");
  EXPECT_EQ(SomeOf({"a", "b", "c", "d"}), "a, b, c and d");
  EXPECT_EQ(SomeOf({"a", "b", "c", "d", "e", "f"}), "a, b, c, d and 2 more");
}

}  // namespace
}  // namespace fsdp
