// SPDX-License-Identifier: Apache-2.0
//
// Options of the C functions that say how a file of another program is read, and what the functions say about it.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoModels[] = "checkpoint/foreign/torch/testdata/two_models.pt";

using Reader = std::unique_ptr<fsdp_reader, void (*)(fsdp_reader*)>;
Reader Open(const std::string& path, const char* map) {
  fsdp_open_options options = {};
  options.struct_size = sizeof(options);
  options.map = map;
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open(path.c_str(), &options, &reader), FSDP_OK) << fsdp_error_message();
  return {reader, fsdp_reader_close};
}

std::string NotesOf(const fsdp_reader* reader) {
  char* notes = nullptr;
  EXPECT_EQ(fsdp_reader_notes(reader, &notes), FSDP_OK) << fsdp_error_message();
  std::string text = notes == nullptr ? "none" : notes;
  fsdp_free(notes);
  return text;
}

TEST(COptionsTest, AMapSaysWhatABranchIsAndTheNotesSayWhatWasDecided) {
  const Reader reader = Open(kTwoModels, "generator=model.g\n\nopt_g=optim.g\n");
  EXPECT_GE(fsdp_reader_find(reader.get(), "model/g.embed.weight"), 0);
  EXPECT_THAT(NotesOf(reader.get()), HasSubstr("generator"));
  EXPECT_EQ(NotesOf(Open("checkpoint/testdata/all_dtypes.safetensors", nullptr).get()), "");
  const std::string made = testing::TempDir() + "/g.safetensors";
  fsdp_convert_options options = {};
  options.struct_size = sizeof(options);
  options.model_only = options.force = 1;
  options.map = "generator=model";
  ASSERT_EQ(fsdp_convert(kTwoModels, made.c_str(), &options, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_GE(fsdp_reader_find(Open(made, "").get(), "model/embed.weight"), 0);
}

TEST(COptionsTest, VerifyAndDiffReadTheBranchesOfTheMap) {
  fsdp_verify_options verify = {};
  verify.struct_size = sizeof(verify);
  verify.map = "generator=model";
  EXPECT_EQ(fsdp_verify(kTwoModels, &verify, nullptr), FSDP_OK) << fsdp_error_message();
  const std::string made = testing::TempDir() + "/of_generator.safetensors";
  fsdp_convert_options convert = {};
  convert.struct_size = sizeof(convert);
  convert.model_only = convert.force = 1;
  convert.map = "generator=model";
  ASSERT_EQ(fsdp_convert(kTwoModels, made.c_str(), &convert, nullptr), FSDP_OK) << fsdp_error_message();
  fsdp_diff_options diff = {};
  diff.struct_size = sizeof(diff);
  diff.model_only = 1;
  int32_t equal = -1;
  ASSERT_EQ(fsdp_diff(kTwoModels, made.c_str(), &diff, &equal, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(equal, 0);
  diff.map = "generator=model";
  ASSERT_EQ(fsdp_diff(kTwoModels, made.c_str(), &diff, &equal, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(equal, 1);
  verify.map = diff.map = "netG=model";
  EXPECT_EQ(fsdp_verify(kTwoModels, &verify, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("options->map has \"netG\""));
  EXPECT_EQ(fsdp_diff(kTwoModels, made.c_str(), &diff, &equal, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("options->map has \"netG\""));
}

TEST(COptionsTest, ATiedHeadOfAHuggingFaceDirectoryIsAnAlias) {
  const std::string directory = testing::TempDir() + "/tied";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const std::string json = R"({"model.embed_tokens.weight":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}} )";
  const std::string length = {static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0};
  std::ofstream(directory + "/model.safetensors") << length << json << "abc";
  std::ofstream(directory + "/config.json") << R"({"tie_word_embeddings": true})";
  const Reader reader = Open(directory, nullptr);
  ASSERT_EQ(fsdp_reader_alias_count(reader.get()), 1);
  EXPECT_EQ(fsdp_reader_find(reader.get(), "model/lm_head.weight"), 0);
  EXPECT_THAT(NotesOf(reader.get()), HasSubstr("lm_head.weight, which is in no file, is model.embed_tokens.weight"));
}

// Errors call an option by the name that a caller of C has for it.
TEST(COptionsTest, AMapThatCannotBeIsRefusedAsAMemberOfTheStruct) {
  fsdp_open_options options = {};
  options.struct_size = sizeof(options);
  fsdp_convert_options convert = {};
  convert.struct_size = sizeof(convert);
  fsdp_reader* reader = nullptr;
  for (const auto& [map, error] : std::vector<std::pair<const char*, const char*>>{
           {"generator", "options->map: \"generator\", expected FROM=ROLE"},
           {"generator=weights", "options->map: \"generator=weights\", expected"},
           {"generator=model\nnetG=model", "options->map has \"netG\""}}) {
    options.map = convert.map = map;
    EXPECT_EQ(fsdp_reader_open(kTwoModels, &options, &reader), FSDP_INVALID_ARGUMENT) << map;
    EXPECT_THAT(fsdp_error_message(), HasSubstr(error));
    EXPECT_EQ(fsdp_convert(kTwoModels, "never-made", &convert, nullptr), FSDP_INVALID_ARGUMENT) << map;
    EXPECT_THAT(fsdp_error_message(), HasSubstr(error));
  }
  options.map = "w=model";
  EXPECT_EQ(fsdp_reader_open("checkpoint/testdata/all_dtypes.safetensors", &options, &reader), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("options->map is for torch files and DCP directories"));
  EXPECT_EQ(reader, nullptr);
  EXPECT_EQ(fsdp_reader_notes(nullptr, nullptr), FSDP_INVALID_ARGUMENT);
}

TEST(COptionsTest, ADestinationThatExistsIsRefusedWithTheOptionThatReplacesIt) {
  const std::string path = testing::TempDir() + "/exists.pt";
  ASSERT_EQ(fsdp_convert(kTwoModels, path.c_str(), nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(fsdp_convert(kTwoModels, path.c_str(), nullptr, nullptr), FSDP_ALREADY_EXISTS);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("exists; options->force replaces it"));
}

}  // namespace
}  // namespace fsdp
