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

std::string AttributesOf(const std::string& path) {
  const Reader reader = Open(path, nullptr);
  char* json = nullptr;
  EXPECT_EQ(fsdp_reader_attributes(reader.get(), &json), FSDP_OK) << fsdp_error_message();
  std::string text = json == nullptr ? "none" : json;
  fsdp_free(json);
  return text;
}

// A SHARDED state with one tensor, for a save by one rank.
class OneTensor {
 public:
  explicit OneTensor(float first) : elements_(kElements) {
    elements_[0] = first;
    fsdp_state* state = nullptr;
    EXPECT_EQ(fsdp_state_create(FSDP_SHARDED, &state), FSDP_OK);
    state_ = {state, fsdp_state_free};
    const int64_t dims[] = {kElements};
    const fsdp_shard all = {0, kElements, elements_.data()};
    EXPECT_EQ(fsdp_state_add_tensor(state, "model/w", FSDP_FLOAT32, 1, dims, &all, 1), FSDP_OK);
  }

  fsdp_state* state() const { return state_.get(); }

  std::string Save(const std::string& root, int64_t step, const char* base) const {
    fsdp_save_options options = {};
    options.struct_size = sizeof(options);
    options.base = base;
    char* path = nullptr;
    EXPECT_EQ(fsdp_save(state(), root.c_str(), step, nullptr, &options, &path), FSDP_OK) << fsdp_error_message();
    std::string saved = path == nullptr ? "none" : path;
    fsdp_free(path);
    return saved;
  }

 private:
  static constexpr int64_t kElements = 1 << 16;

  std::vector<float> elements_;
  std::unique_ptr<fsdp_state, void (*)(fsdp_state*)> state_ = {nullptr, fsdp_state_free};
};

std::string NewRoot(const std::string& name) {
  const std::string root = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(root);
  return root;
}

TEST(COptionsTest, AttributesComeBackAsTheyWereSet) {
  const OneTensor saved(1);
  const std::string root = NewRoot("attributes");
  ASSERT_EQ(fsdp_state_set_attributes(saved.state(), R"({"a": 1})"), FSDP_OK) << fsdp_error_message();
  ASSERT_EQ(fsdp_state_set_attributes(saved.state(), R"({"x":"\u00e9","model.n":4,"lr":1e-3,"b":true,"no":null})"),
            FSDP_OK)
      << fsdp_error_message();
  EXPECT_EQ(AttributesOf(saved.Save(root, 1, nullptr)),
            "{\n  \"b\": true,\n  \"lr\": 0.001,\n  \"model.n\": 4,\n  \"no\": null,\n  \"x\": \"\xC3\xA9\"\n}");
  ASSERT_EQ(fsdp_state_set_attributes(saved.state(), "{}"), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(AttributesOf(saved.Save(root, 2, nullptr)), "{}");
  EXPECT_EQ(AttributesOf(kTwoModels), "{}");
}

TEST(COptionsTest, AttributesThatNoCheckpointHasAreRefusedByName) {
  const OneTensor saved(1);
  ASSERT_EQ(fsdp_state_set_attributes(saved.state(), R"({"a": 1})"), FSDP_OK) << fsdp_error_message();
  for (const auto& [json, error] :
       std::vector<std::pair<const char*, const char*>>{{"[1]", "attributes: "},
                                                        {"{", "attributes: "},
                                                        {R"({"a":1,"a":2})", "\"a\""},
                                                        {R"({"list":[1]})", "attribute \"list\": it is not a scalar"},
                                                        {R"({"big":18446744073709551615})", "attribute \"big\""},
                                                        {R"({"":1})", "the name is empty"}}) {
    EXPECT_EQ(fsdp_state_set_attributes(saved.state(), json), FSDP_INVALID_ARGUMENT) << json;
    EXPECT_THAT(fsdp_error_message(), HasSubstr(error));
  }
  EXPECT_EQ(fsdp_state_set_attributes(saved.state(), nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_set_attributes(nullptr, "{}"), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_attributes(nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(AttributesOf(saved.Save(NewRoot("refused_attributes"), 1, nullptr)), "{\n  \"a\": 1\n}");
}

TEST(COptionsTest, WhatIsUnchangedSinceTheBaseIsLinked) {
  const std::string root = NewRoot("base");
  const std::string base = OneTensor(1).Save(root, 1, nullptr);
  const std::string linked = "/rank-00000-of-00001.step-00000001.h5";
  EXPECT_TRUE(std::filesystem::exists(OneTensor(1).Save(root, 2, base.c_str()) + linked));
  EXPECT_FALSE(std::filesystem::exists(OneTensor(2).Save(root, 3, base.c_str()) + linked));
  const std::string without = OneTensor(1).Save(root, 4, (root + "/step-00000099").c_str());
  EXPECT_FALSE(std::filesystem::exists(without + linked));
  EXPECT_EQ(fsdp_verify(without.c_str(), nullptr, nullptr), FSDP_OK) << fsdp_error_message();
}

TEST(COptionsTest, ADestinationThatExistsIsRefusedWithTheOptionThatReplacesIt) {
  const std::string path = testing::TempDir() + "/exists.pt";
  ASSERT_EQ(fsdp_convert(kTwoModels, path.c_str(), nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(fsdp_convert(kTwoModels, path.c_str(), nullptr, nullptr), FSDP_ALREADY_EXISTS);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("exists; options->force replaces it"));
}

}  // namespace
}  // namespace fsdp
