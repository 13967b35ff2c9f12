// SPDX-License-Identifier: Apache-2.0
//
// ckpt inspect: which step of a ROOT it shows, and what it says about any checkpoint.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;

class CkptInspectTest : public CkptTest {
 protected:
  // A sharded step of two ranks.
  void SaveStep(const std::string& path, int64_t step) const {
    ShardedTensor tensor;
    tensor.dtype = DType::kFloat32;
    tensor.shape = Shape({4096});
    StateDict state;
    state.Set(StateKey::Model("w"), tensor);
    const PayloadReader ones = [](const StateKey&, const Interval& interval, void* out) {
      for (int64_t i = 0; i < interval.size(); ++i) static_cast<float*>(out)[i] = 1;
      return absl::OkStatus();
    };
    CheckpointDirectoryOptions options;
    options.type = StateDictType::kSharded;
    options.world_size = 2;
    options.step = step;
    EXPECT_OK(WriteCheckpointDirectory(path, state, ones, options));
  }

  void SaveSteps() const {
    fs::create_directory(Path("root"));
    for (const int step : {1, 2}) SaveStep(Path("root/step-0000000" + std::to_string(step)), step);
  }
};

TEST_F(CkptInspectTest, AnEqualNumberOfSeveralParametersIsOneLine) {
  StateDict state;
  state.Set(StateKey::Model("w"), ShardedTensor{DType::kFloat32, {4}, {}, 0});
  for (const auto& [name, value] : {std::pair("a", "7"), {"b", "7"}, {"c", "8"}}) {
    state.Set(StateKey::Extra(absl::StrCat("optim/state/", name, "/step")), std::string(value));
  }
  ASSERT_OK(WriteCheckpointDirectory(Path("full"), state, ZeroPayload(), {}));
  EXPECT_THAT(MustCkpt({"inspect", Path("full")}), HasSubstr("texts\n"
                                                             "  extra/optim/state/*/step = 7  of 2 parameters\n"
                                                             "  extra/optim/state/c/step = 8\n"));
}

// Regression: every byte of the newest step was read, to verify it.
TEST_F(CkptInspectTest, OfARootTheNewestStepIsShownWithoutReadingItsValues) {
  SaveSteps();
  const std::string file = Path("root/step-00000002/rank-00000-of-00002.h5");
  const auto size = fs::file_size(file);
  // The file has its length, and no byte of it can be right.
  std::ofstream(file) << "";
  fs::resize_file(file, size);
  EXPECT_THAT(MustCkpt({"inspect", Path("root")}),
              AllOf(HasSubstr(Path("root") + ": the newest step is " + Path("root/step-00000002") +
                              "; its values are not verified"),
                    HasSubstr("checkpoint of step 2"), Not(HasSubstr("skipped"))));
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("root"), "--json"}))["step"], 2);
  // The page shows values, so its step verifies.
  EXPECT_THAT(MustCkpt({"inspect", Path("root"), "--html=" + Path("page.html")}),
              AllOf(HasSubstr("the newest step that verifies is " + Path("root/step-00000001")),
                    HasSubstr("skipped: step-00000002 does not verify")));
}

// Regression: convert and diff took an older step without a word.
TEST_F(CkptInspectTest, AnOlderStepOfARootIsReadWithTheReason) {
  SaveSteps();
  std::ofstream(Path("root/step-00000002/rank-00000-of-00002.h5")) << "";
  const std::string reason = "step-00000002 does not verify: rank-00000-of-00002.h5";
  const auto has_reason = AllOf(HasSubstr(reason), HasSubstr("; step-00000001 is read in its place"));
  EXPECT_THAT(MustCkpt({"convert", Path("root"), Path("a.pt")}), AllOf(HasSubstr("note: " + reason), has_reason));
  const Json converted = Json::parse(MustCkpt({"convert", Path("root"), Path("b.pt"), "--json"}));
  EXPECT_THAT(converted["notes"].dump(), has_reason);
  EXPECT_THAT(MustCkpt({"diff", Path("root"), Path("a.pt")}), AllOf(HasSubstr("skipped in A: " + reason), has_reason));
  const Json compared = Json::parse(MustCkpt({"diff", Path("a.pt"), Path("root"), "--json"}));
  EXPECT_THAT(compared["b"]["skipped"].dump(), has_reason);
  EXPECT_FALSE(compared["a"].contains("skipped"));
}

TEST_F(CkptInspectTest, ElementsDTypesAndShortTextsAreShown) {
  ShardedTensor tensor;
  tensor.dtype = DType::kBFloat16;
  tensor.shape = Shape({1200, 1});
  StateDict state;
  state.Set(StateKey::Model("w"), tensor);
  tensor.dtype = DType::kInt64;
  tensor.shape = Shape({});
  state.Set(StateKey::Model("count"), tensor);
  state.Set(StateKey::Extra("position"), std::string(R"({"next":17})"));
  state.Set(StateKey::Extra("long"), std::string(1000, 'x'));
  const PayloadReader zeros = [](const StateKey& key, const Interval& interval, void* out) {
    std::memset(out, 0, interval.size() * (key.fqn == "w" ? 2 : 8));
    return absl::OkStatus();
  };
  ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, zeros, {}));
  MustCkpt({"convert", Path("a"), Path("a.pt")});
  for (const char* name : {"a", "a.pt"}) {
    EXPECT_THAT(MustCkpt({"inspect", Path(name)}),
                AllOf(HasSubstr("  model      2 tensors, 2.4 kB: 1,201 elements, 1 of bfloat16, 1 of int64\n"),
                      HasSubstr("  extra/position = {\"next\":17}\n"), HasSubstr("  extra/long  1.0 kB\n"),
                      Not(HasSubstr("optimizer")), Not(HasSubstr("extra      ")), Not(HasSubstr("flat units"))));
    const Json json = Json::parse(MustCkpt({"inspect", Path(name), "--json"}));
    EXPECT_EQ(json["model"]["elements"], 1201);
    EXPECT_EQ(json["model"]["dtypes"], (Json{{"bfloat16", 1}, {"int64", 1}}));
    EXPECT_EQ(json["values"]["extra/position"], R"({"next":17})");
    EXPECT_FALSE(json["values"].contains("extra/long"));
    EXPECT_EQ(json["texts"].size(), 2);
  }
}

TEST_F(CkptInspectTest, AFormatThatHoldsTheDTypesIsSuggested) {
  const std::string testdata = "checkpoint/foreign/torch/testdata/";
  EXPECT_THAT(MustCkpt({"inspect", testdata + "rare_dtypes.pt"}),
              HasSubstr("rare_dtypes.pt model.pt\n"));  // complex128
  EXPECT_THAT(MustCkpt({"inspect", testdata + "views.pt"}), HasSubstr("views.pt model.safetensors\n"));
}

TEST_F(CkptInspectTest, TensorsAreAlignedAndTheFileIsNamedOnlyIfThereAreSeveral) {
  ShardedTensor tensor;
  tensor.shape = Shape({3});
  StateDict state;
  state.Set(StateKey::Model("a.longer.name"), tensor);
  tensor.shape = Shape({3, 1});
  state.Set(StateKey::Model("b"), tensor);
  ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, ZeroPayload(), {}));
  EXPECT_THAT(MustCkpt({"inspect", Path("a"), "--tensors"}),
              HasSubstr("each tensor\n"
                        "  model/a.longer.name  float32 [3]        12 B\n"
                        "  model/b              float32 [3, 1]     12 B\n"));
}

TEST_F(CkptInspectTest, TheListOfTensorsIsSortedBySizeOrByName) {
  StateDict state;
  ShardedTensor tensor;
  for (const auto& [name, rows] : {std::pair("h.10.w", 2), std::pair("h.2.w", 1), std::pair("h.9.w", 3)}) {
    tensor.shape = Shape({rows, 4});
    state.Set(StateKey::Model(name), tensor);
  }
  ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, ZeroPayload(), {}));
  const auto rows = [](const std::string& first, const std::string& second, const std::string& third) {
    return testing::ContainsRegex(absl::StrCat(first, ".*\n.*", second, ".*\n.*", third));
  };
  EXPECT_THAT(MustCkpt({"inspect", Path("a"), "--tensors"}), rows("h.10.w", "h.2.w", "h.9.w"));
  EXPECT_THAT(MustCkpt({"inspect", Path("a"), "--tensors", "--sort=name"}), rows("h.2.w", "h.9.w", "h.10.w"));
  EXPECT_THAT(MustCkpt({"inspect", Path("a"), "--tensors", "--sort=size"}), rows("h.9.w", "h.10.w", "h.2.w"));
  const Json json = Json::parse(MustCkpt({"inspect", Path("a"), "--tensors=[.]w", "--sort=size", "--json"}));
  ASSERT_EQ(json["tensors"].size(), 3);
  EXPECT_EQ(json["tensors"][0]["name"], "model/h.9.w");
  EXPECT_THAT(Ckpt({"inspect", Path("a"), "--tensors", "--sort=bytes"}).err, HasSubstr("expected one of: size, name"));
  EXPECT_THAT(Ckpt({"inspect", Path("a"), "--sort=size"}).err, HasSubstr("is for the list of --tensors"));
}

// A tensor of a large job is in hundreds of files.
TEST_F(CkptInspectTest, ARowIsShortAndEachFileSaysWhatItIsFor) {
  ShardedTensor tensor;
  tensor.shape = Shape({12, 4});
  StateDict state;
  state.Set(StateKey::Model("w"), tensor);
  CheckpointDirectoryOptions options = {.type = StateDictType::kSharded, .world_size = 6, .parity = 1};
  ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, ZeroPayload(), options));
  const std::string text = MustCkpt({"inspect", Path("a"), "--tensors"});
  EXPECT_THAT(text, HasSubstr("  192 B  rank-00000-of-00006.h5[0, 8) rank-00001-of-00006.h5[8, 16) and 4 more"));
  EXPECT_THAT(text, testing::ContainsRegex("  checkpoint.h5              +[0-9.]+ kB, shows all tensors, for h5py"));
  EXPECT_THAT(text, testing::ContainsRegex("  parity-00000-of-00001.bin  +[0-9.]+ kB, makes lost or damaged rank fil"));
  const Json json = Json::parse(MustCkpt({"inspect", Path("a"), "--tensors", "--json"}));
  EXPECT_EQ(json["tensors"][0]["shards"].size(), 6);
}

TEST_F(CkptInspectTest, StepsOfARootWhoseMetadataAreDamagedAreSkippedByName) {
  SaveSteps();
  SaveStep(Path("root/step-00000003"), 3);
  SaveStep(Path("root/step-00000004"), 0);
  fs::remove(Path("root/step-00000003/rank-00001-of-00002.h5"));
  WriteFile(Path("root/step-00000002/manifest.json"), "{}");
  const std::string text = MustCkpt({"inspect", Path("root")});
  EXPECT_THAT(text,
              AllOf(HasSubstr("skipped: step-00000004 is damaged: its manifest is of step 0"),
                    HasSubstr("as step-00000000 it would be a step"), HasSubstr("skipped: step-00000003 is damaged: "),
                    HasSubstr("skipped: step-00000002 is damaged"),
                    HasSubstr("the newest step is " + Path("root/step-00000001"))));
  const Json json = Json::parse(MustCkpt({"inspect", Path("root"), "--json"}));
  EXPECT_EQ(json["root"], Path("root"));
  EXPECT_EQ(json["skipped"].size(), 3);
  fs::remove_all(Path("root/step-00000001"));
  const Outcome outcome = Ckpt({"inspect", Path("root")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("holds no checkpoint that is whole; step-00000004 is damaged"),
                                 HasSubstr("; step-00000002 is damaged")));
}

}  // namespace
}  // namespace fsdp
