// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/carried_files.h"

#include <filesystem>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;

// A directory with a model of one float32 element, and the files `names` with their own names as contents.
std::string ModelWith(const std::string& directory, const std::vector<std::string>& names) {
  fs::create_directories(directory);
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  WriteAll(directory + "/model.safetensors", length + header + "1234");
  for (const std::string& name : names) WriteAll(directory + "/" + name, name);
  return directory;
}

TEST(CarriedFilesTest, ConfigAndTokenizerAreCopiedAndNamed) {
  const std::string source = ModelWith(
      NewTestDirectory() + "/source",
      {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "README.md",
       "model.safetensors.index.json", "optimizer.pt", "trainer_state.json", "modeling.py", "chat_template.jinja"});
  const std::string destination = NewTestDirectory() + "/copy";
  for (const bool force : {false, true}) {
    ConvertOptions options;
    options.target = SafetensorsTarget();
    options.force = force;
    ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertCheckpoint(source, destination, options));
    EXPECT_THAT(ListNames(destination),
                ElementsAre("chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                            "model.safetensors", "tokenizer.json", "tokenizer.model"));
    EXPECT_EQ(ReadFile(destination + "/tokenizer.model"), "tokenizer.model");
    EXPECT_THAT(report.notes, AllOf(testing::Contains(HasSubstr("copied unchanged: chat_template.jinja, config.json")),
                                    testing::Contains("not copied, because it is code: modeling.py"),
                                    testing::Contains(HasSubstr("left out: \"optimizer.pt\""))));
  }
}

TEST(CarriedFilesTest, APointerOfGitLfsIsNotCopiedAsTheFileThatItStandsFor) {
  const std::string source = ModelWith(NewTestDirectory() + "/source", {"config.json"});
  WriteAll(source + "/tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:3f\nsize 17\n");
  const std::string destination = NewTestDirectory() + "/copy";
  ConvertOptions options;
  options.target = SafetensorsTarget();
  ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertCheckpoint(source, destination, options));
  EXPECT_THAT(ListNames(destination), ElementsAre("config.json", "model.safetensors"));
  EXPECT_THAT(report.notes, testing::Contains(AllOf(HasSubstr("not copied: \"tokenizer.json\", "),
                                                    HasSubstr("is a Git LFS pointer to a file of 17 bytes"))));
}

TEST(CarriedFilesTest, AFileOfTheDestinationThatIsNotReplacedStops) {
  const std::string source = ModelWith(NewTestDirectory() + "/source", {"config.json"});
  const std::string destination = ModelWith(NewTestDirectory() + "/copy", {"config.json", "notes.txt"});
  ConvertOptions options;
  options.target = SafetensorsTarget();
  options.force = true;
  EXPECT_THAT(ConvertCheckpoint(source, destination, options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"notes.txt\"")));
}

TEST(CarriedFilesTest, WhatOneFileLeavesBehindIsNamed) {
  const std::string source = ModelWith(NewTestDirectory() + "/source", {"config.json"});
  WriteAll(source + "/config.json", "{}");
  for (const char* name : {"/copy.safetensors", "/copy.pt", "/copy"}) {
    ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertCheckpoint(source, NewTestDirectory() + name, {}));
    EXPECT_THAT(report.notes, ElementsAre("not copied: config.json; a directory of safetensors would keep it all"))
        << name;
  }
}

TEST(CarriedFilesTest, ADirectoryWithoutAConfigCarriesNothing) {
  EXPECT_THAT(FindCarriedFiles(ModelWith(NewTestDirectory(), {"tokenizer.json"}), std::nullopt).files, IsEmpty());
}

TEST(CarriedFilesTest, LinksOfTheHubsCacheAreFollowedAndOthersAreNot) {
  const std::string cache = NewTestDirectory() + "/models--a--b";
  const std::string snapshot = ModelWith(cache + "/snapshots/c0ffee", {});
  fs::create_directory(cache + "/blobs");
  WriteAll(cache + "/blobs/0123", "{}");
  WriteAll(cache + "/secret", "secret");
  fs::create_symlink("../../blobs/0123", snapshot + "/config.json");
  fs::create_symlink("config.json", snapshot + "/generation_config.json");
  fs::create_symlink("../../secret", snapshot + "/tokenizer.json");
  fs::create_symlink("/etc/passwd", snapshot + "/vocab.txt");
  fs::create_symlink("none", snapshot + "/merges.txt");
  const CarriedFiles carried = FindCarriedFiles(snapshot, DType::kBFloat16);
  EXPECT_THAT(carried.files, ElementsAre(Key("config.json"), Key("generation_config.json")));
  EXPECT_THAT(carried.notes, ElementsAre(HasSubstr("copied unchanged"), HasSubstr("the source's dtype, not bfloat16"),
                                         "not copied: \"tokenizer.json\", it is a link that leads out of the directory",
                                         "not copied: \"vocab.txt\", it is a link that leads out of the directory"));
}

}  // namespace
}  // namespace fsdp
