// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/initial_weights.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;

ShardedTensor Viewing(std::vector<float>& values) {
  const auto numel = static_cast<int64_t>(values.size());
  const int64_t nbytes = numel * SizeOf(DType::kFloat32);
  return ShardedTensor::Whole(Tensor(Buffer::Unowned(values.data(), nbytes), DType::kFloat32, {numel}));
}

// A file that holds each of `names` = 1, 2, 3.
std::string FileWith(const std::string& file, const std::vector<std::string>& names) {
  std::vector<float> values = {1, 2, 3};
  StateDict state;
  for (const std::string& name : names) state.Set(StateKey::Model(name), Viewing(values));
  const std::string path = testing::TempDir() + "/" + file;
  SafetensorsOptions options;
  options.overwrite = true;
  EXPECT_OK(WriteSafetensors(path, state, ReadFromMemory(state), options));
  return path;
}

// LoadInitialWeights on one rank.
absl::Status LoadAlone(const std::string& path, const std::string& prefix, StateDict& wanted,
                       const LoadOptions& options = {}, std::vector<std::string>* notes = nullptr) {
  return RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    return LoadInitialWeights(path, prefix, wanted, *group, options, notes);
  });
}

TEST(InitialWeightsTest, ReadsBothSpellingsOfEachModel) {
  for (const std::string base : {"transformer.wte.weight", "model.embed_tokens.weight"}) {
    const std::string prefix = base.substr(0, base.find('.') + 1);
    for (const std::string& name : {base, base.substr(prefix.size())}) {
      std::vector<float> values(3);
      StateDict wanted;
      wanted.Set(StateKey::Model(base), Viewing(values));
      EXPECT_OK(LoadAlone(FileWith(name + ".safetensors", {name}), prefix, wanted));
      EXPECT_THAT(values, ElementsAre(1, 2, 3)) << name;
    }
  }
}

TEST(InitialWeightsTest, AMapSaysWhichOfTwoModelsIsMeant) {
  std::vector<float> model = {1, 2, 3};
  std::vector<float> average = {4, 5, 6};
  StateDict state;
  state.Set(StateKey::Model("transformer.wte.weight"), Viewing(model));
  state.Set(StateKey::Extra("ema"),
            std::string(R"({"transformer.wte.weight":{"__python__":"reference","name":"ema.w"}})"));
  state.Set(StateKey::Extra("ema.w"), Viewing(average));
  const std::string path = testing::TempDir() + "/two_models.pt";
  ASSERT_OK(MakeWriter(TorchTarget())->Write(path, {.state = state}, ReadFromMemory(state), {.overwrite = true}));
  std::vector<float> values(3);
  StateDict wanted;
  wanted.Set(StateKey::Model("transformer.wte.weight"), Viewing(values));
  ASSERT_OK(LoadAlone(path, "transformer.", wanted));
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  LoadOptions options;
  options.map = {*ParseTensorRole("ema=model")};
  std::vector<std::string> notes;
  ASSERT_OK(LoadAlone(path, "transformer.", wanted, options, &notes));
  EXPECT_THAT(values, ElementsAre(4, 5, 6));
  EXPECT_THAT(notes, Contains(HasSubstr("model from \"ema\"")));
  EXPECT_THAT(LoadAlone(FileWith("one.safetensors", {"transformer.wte.weight"}), "transformer.", wanted, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Options::map is for torch files and DCP")));
}

TEST(InitialWeightsTest, NotesWhatIsGuessedAndWhatIsLeftOut) {
  std::vector<float> values(3);
  StateDict wanted;
  wanted.Set(StateKey::Model("transformer.wte.weight"), Viewing(values));
  const std::string path = FileWith("base.safetensors", {"wte.weight", "score.weight"});
  std::vector<std::string> notes;
  ASSERT_OK(LoadAlone(path, "transformer.", wanted, {}, &notes));
  EXPECT_THAT(notes, ElementsAre(path + ": its names are read as a base model's, without \"transformer.\"",
                                 path + ": left out: 1 tensor that the model does not have: score.weight"));
  notes.clear();
  ASSERT_OK(LoadAlone(FileWith("same.safetensors", {"transformer.wte.weight"}), "transformer.", wanted, {}, &notes));
  EXPECT_THAT(notes, IsEmpty());
}

// Regression: such a file was refused.
TEST(InitialWeightsTest, TextsAmongTheArraysOfAnNpzFileAreLeftOutByName) {
  std::vector<float> values(35);
  const Tensor memory(Buffer::Unowned(values.data(), 35 * sizeof(float)), DType::kFloat32, {5, 7});
  StateDict wanted;
  wanted.Set(StateKey::Model("embed/weight"), ShardedTensor::Whole(memory));
  const std::string path = "checkpoint/foreign/npz/testdata/stored.npz";
  std::vector<std::string> notes;
  ASSERT_OK(LoadAlone(path, "transformer.", wanted, {}, &notes));
  EXPECT_NE(values, std::vector<float>(35));
  EXPECT_THAT(notes, IsSupersetOf({path + R"(: left out: "text" (texts))", path + R"(: left out: "bytes" (texts))"}));
  wanted.Set(StateKey::Model("text"), ShardedTensor::Whole(memory));
  EXPECT_THAT(LoadAlone(path, "transformer.", wanted),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(R"(it is read without: "text" (texts))")));
}

TEST(InitialWeightsTest, NamesATensorThatIsMissing) {
  std::vector<float> values(3);
  StateDict wanted;
  wanted.Set(StateKey::Model("transformer.wpe.weight"), Viewing(values));
  EXPECT_THAT(LoadAlone(FileWith("other.safetensors", {"transformer.wte.weight"}), "transformer.", wanted),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("transformer.wpe.weight")));
}

}  // namespace
}  // namespace fsdp
