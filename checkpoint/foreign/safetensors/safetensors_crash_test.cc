// SPDX-License-Identifier: Apache-2.0
//
// A crash, a power cut or an error at each storage operation of writing safetensors in turn: afterwards the name
// is that of the old contents, or of all that was to be written; and the next writer leaves nothing else behind.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_writer.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Loss = FaultFileSystem::Loss;
using testing::ElementsAre;

struct Scenario {
  bool is_directory = false;
  bool is_overwrite = false;
};

// All bytes below `path`, by file; empty when there is nothing.
std::map<std::string, std::string> Contents(const std::string& path) {
  std::map<std::string, std::string> contents;
  const auto add = [&](const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    contents[fs::relative(file, path)] = {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  };
  if (fs::is_regular_file(path)) add(path);
  if (!fs::is_directory(path)) return contents;
  for (const auto& entry : fs::recursive_directory_iterator(path)) add(entry.path());
  return contents;
}

class SafetensorsCrashTest : public testing::TestWithParam<Scenario> {
 protected:
  SafetensorsCrashTest()
      : base_(absl::StrCat(testing::TempDir(), "/crash_test")),
        graveyard_(base_ + "/graveyard"),
        root_(base_ + "/root") {
    fs::remove_all(base_);
    fs::create_directories(graveyard_);
  }

  std::string Target() const { return root_ + "/model"; }

  // As Write without faults; quick, since nothing is synced.
  absl::Status WriteWell(int64_t numel) {
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    return Write(files, numel);
  }

  // Writes two tensors of `numel` bytes, each `numel`.
  absl::Status Write(FileSystem& files, int64_t numel) {
    StateDict contents;
    for (const char* name : {"a", "b"}) {
      ShardedTensor tensor;
      tensor.dtype = DType::kUInt8;
      tensor.shape = {numel};
      contents.Set(StateKey::Model(name), tensor);
    }
    const PayloadReader read = [numel](const StateKey&, const Interval& interval, void* out) {
      std::fill_n(static_cast<char*>(out), interval.size(), static_cast<char>(numel));
      return absl::OkStatus();
    };
    SafetensorsOptions options;
    options.overwrite = true;
    options.file_system = &files;
    options.io_threads = 1;
    if (GetParam().is_directory) return WriteHuggingFaceDirectory(Target(), contents, read, {options, numel});
    return WriteSafetensors(Target(), contents, read, options);
  }

  // Makes the file that exists before the write under test; returns its contents.
  std::map<std::string, std::string> Prepare() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    if (!GetParam().is_overwrite) return {};
    EXPECT_OK(WriteWell(5));
    return Contents(Target());
  }

  std::map<std::string, std::string> NewContents() {
    Prepare();
    EXPECT_OK(WriteWell(7));
    return Contents(Target());
  }

  int64_t CountOperations() {
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    EXPECT_OK(Write(files, 7));
    return files.operations();
  }

  // The next writer succeeds and leaves only the model.
  void WriteAgain(const std::map<std::string, std::string>& expected) {
    ASSERT_OK(WriteWell(7));
    EXPECT_EQ(Contents(Target()), expected);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) names.push_back(entry.path().filename());
    EXPECT_THAT(names, ElementsAre("model"));
  }

  const std::string base_;
  const std::string graveyard_;
  const std::string root_;
};

TEST_P(SafetensorsCrashTest, ACrashAtAnyOperationLeavesOldOrNew) {
  const std::map<std::string, std::string> after = NewContents();
  const int64_t operations = CountOperations();
  ASSERT_GT(operations, 5);
  for (const Loss loss : {Loss::kNothing, Loss::kNamesAndData, Loss::kNames, Loss::kData}) {
    for (int64_t k = 1; k <= operations; ++k) {
      SCOPED_TRACE(absl::StrCat("crash at operation ", k, " of ", operations, ", loss ", static_cast<int>(loss)));
      const std::map<std::string, std::string> before = Prepare();
      FaultFileSystem files(PosixFileSystem(), graveyard_);
      files.CrashAt(k);
      (void)Write(files, 7);  // what was not reported may have happened all the same
      files.LosePower(loss);
      const std::map<std::string, std::string> found = Contents(Target());
      EXPECT_TRUE(found == before || found == after);
      WriteAgain(after);
    }
  }
}

TEST_P(SafetensorsCrashTest, AReportedWriteSurvivesAPowerCut) {
  const std::map<std::string, std::string> after = NewContents();
  Prepare();
  FaultFileSystem files(PosixFileSystem(), graveyard_);
  ASSERT_OK(Write(files, 7));
  files.LosePower(Loss::kNamesAndData);
  EXPECT_EQ(Contents(Target()), after);
}

TEST_P(SafetensorsCrashTest, AnErrorAtAnyOperationLeavesOldOrNewAndNothingElse) {
  const std::map<std::string, std::string> after = NewContents();
  const int64_t operations = CountOperations();
  for (int64_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(absl::StrCat("error at operation ", k, " of ", operations));
    const std::map<std::string, std::string> before = Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    files.FailAt(k, absl::ResourceExhaustedError("no space left on device"));
    const absl::Status status = Write(files, 7);
    const std::map<std::string, std::string> found = Contents(Target());
    EXPECT_TRUE(found == before || found == after);
    if (found != after) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    }
    WriteAgain(after);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsCrashTest,
                         testing::Values(Scenario{false, false}, Scenario{false, true}, Scenario{true, false},
                                         Scenario{true, true}),
                         [](const testing::TestParamInfo<Scenario>& info) {
                           return absl::StrCat(info.param.is_directory ? "Directory" : "File",
                                               info.param.is_overwrite ? "Replaced" : "New");
                         });

}  // namespace
}  // namespace fsdp
