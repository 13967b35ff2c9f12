// SPDX-License-Identifier: Apache-2.0
//
// Conversions as a user runs them: there and back again gives the same bytes, and a failed one leaves no file.
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Json = nlohmann::json;
using CkptConvertTest = CkptTest;

ShardedTensor TensorOf(DType dtype, const Shape& shape) {
  ShardedTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  return tensor;
}

// A training state: a tied parameter, a buffer, optimizer state, groups, an extra text and units.
StateDict TrainingState() {
  StateDict state;
  state.Set(StateKey::Model("net.wte.weight"), TensorOf(DType::kFloat32, {5, 3}));
  state.Set(StateKey::Model("net.bias"), TensorOf(DType::kFloat32, {7}));
  state.Set(StateKey::Model("net.count"), TensorOf(DType::kInt64, {}));
  state.Set(StateKey::OptimState("net.wte.weight", "exp_avg"), TensorOf(DType::kFloat32, {5, 3}));
  state.Set(StateKey::OptimState("net.wte.weight", "step"), TensorOf(DType::kFloat32, {}));
  state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.001,"params":["net.wte.weight","net.bias"]}])"));
  state.Set(StateKey::Extra("position"), std::string("{\"next\": 17}"));
  state.aliases["net.head.weight"] = "net.wte.weight";
  state.units = {{"", {{"net.wte.weight", 0, 15}, {"net.bias", 15, 7}}, 22}};
  return state;
}

// Fills float32 with 1, 2, 3, ... and other dtypes with zeros.
absl::Status ReadNumbers(const StateKey& key, const Interval& interval, void* out) {
  if (key.fqn == "net.count") {
    std::memset(out, 0, interval.size() * sizeof(int64_t));
  } else {
    std::iota(static_cast<float*>(out), static_cast<float*>(out) + interval.size(),
              static_cast<float>(interval.begin + 1));
  }
  return absl::OkStatus();
}

// Makes a checkpoint of TrainingState at `path`.
void WriteTrainingState(const std::string& path, StateDictType type, int world_size, int64_t step) {
  StateDict state = TrainingState();
  state.type = type;
  CheckpointDirectoryOptions options;
  options.type = type;
  options.world_size = world_size;
  options.step = step;
  ASSERT_OK(WriteCheckpointDirectory(path, state, ReadNumbers, options));
}

// Flips the lowest bit of byte `at` of a file; from the end when negative.
void FlipBit(const std::string& path, int64_t at) {
  std::string bytes = ReadFile(path);
  bytes[at < 0 ? bytes.size() + at : at] ^= 1;
  WriteFile(path, bytes);
}

TEST_F(CkptConvertTest, AModelComesBackByteForByteFromAnyKindAndWorldSize) {
  MustCkpt({"convert", TestData("hf_sharded"), Path("joined.safetensors")});
  for (const std::string& model : {TestData("all_dtypes.safetensors"), Path("joined.safetensors")}) {
    for (const char* world_size : {"1", "2", "3", "7"}) {
      MustCkpt({"convert", model, Path("sharded"), "--state_dict_type=sharded", "--world_size", world_size, "--force"});
      MustCkpt({"verify", Path("sharded")});
      MustCkpt({"convert", Path("sharded"), Path("full"), "--force"});
      MustCkpt({"verify", Path("full")});
      MustCkpt({"convert", Path("full"), Path("back.safetensors"), "--force"});
      EXPECT_EQ(ReadFile(Path("back.safetensors")), ReadFile(model)) << model << " at " << world_size;
      MustCkpt({"convert", Path("sharded"), Path("back.safetensors"), "--force"});
      EXPECT_EQ(ReadFile(Path("back.safetensors")), ReadFile(model)) << model << " at " << world_size;
    }
  }
}

TEST_F(CkptConvertTest, MetadataThatIsNoneIsAnErrorThatNamesTheSource) {
  StateDict state = TrainingState();
  state.Set(StateKey::Extra("__metadata__"), std::string("no json"));
  ASSERT_OK(WriteCheckpointDirectory(Path("odd"), state, ReadNumbers, {}));
  for (const char* target : {"model.safetensors", "copy"}) {
    const Outcome outcome = Ckpt({"convert", Path("odd"), Path(target)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr(Path("odd") + ": extra/__metadata__ is not a JSON object of strings"));
    EXPECT_FALSE(fs::exists(Path(target)));
  }
  MustCkpt({"convert", Path("odd"), Path("model.pt")});  // the torch file loses it
}

TEST_F(CkptConvertTest, PrintsOneJsonObject) {
  WriteTrainingState(Path("a"), StateDictType::kFull, 1, 40);
  const Json json = Json::parse(MustCkpt({"convert", Path("a"), Path("model.safetensors"), "--json"}));
  EXPECT_EQ(json["destination"], Path("model.safetensors"));
  EXPECT_EQ(json["tensors"], 3);
  EXPECT_EQ(json["bytes"], 96);
  EXPECT_EQ(json["notes"].size(), 4);
  const Outcome refused = Ckpt({"convert", Path("a"), Path("model.safetensors"), "--json"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(std::string(Json::parse(refused.out)["problem"]), HasSubstr("exists; --force replaces it"));
}

TEST_F(CkptConvertTest, ACheckpointFileAloneIsConvertedWithoutItsManifest) {
  WriteTrainingState(Path("a"), StateDictType::kFull, 1, 40);
  fs::copy(Path("a/checkpoint.h5"), Path("sent.h5"));
  EXPECT_THAT(MustCkpt({"inspect", Path("sent.h5")}), HasSubstr("an HDF5 file without a manifest"));
  EXPECT_THAT(MustCkpt({"verify", Path("sent.h5")}), HasSubstr("hdf5 file has no digests"));
  MustCkpt({"convert", Path("sent.h5"), Path("b"), "--state_dict_type=sharded", "--world_size=2"});
  MustCkpt({"diff", Path("sent.h5"), Path("b")});
  // Metadata that crash the library crash only a separate process.
  std::string bytes = ReadFile(Path("sent.h5"));
  for (size_t i = 100; i < 4000; i += 3) bytes[i] = static_cast<char>(bytes[i] ^ 0x55);
  WriteFile(Path("sent.h5"), bytes);
  const Outcome outcome = Ckpt({"convert", Path("sent.h5"), Path("c")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr(Path("sent.h5") + ": "));
  EXPECT_FALSE(fs::exists(Path("c")));
}

TEST_F(CkptConvertTest, AHuggingFaceDirectoryIsMadeWithoutASuffix) {
  MustCkpt({"convert", TestData("hf_sharded"), Path("hf"), "--to=safetensors"});
  EXPECT_THAT(NamesIn(Path("hf")), ElementsAre("model.safetensors"));
  MustCkpt({"convert", Path("hf"), Path("split"), "--to=safetensors", "--max_shard_size=10KB"});
  EXPECT_GT(NamesIn(Path("split")).size(), 2);
  MustCkpt({"convert", Path("split"), Path("joined.safetensors")});
  EXPECT_EQ(ReadFile(Path("joined.safetensors")), ReadFile(Path("hf/model.safetensors")));
}

TEST_F(CkptConvertTest, EverythingOfATrainingStateIsCarriedBetweenKinds) {
  WriteTrainingState(Path("a"), StateDictType::kSharded, 3, 40);
  MustCkpt({"convert", Path("a"), Path("full")});
  MustCkpt({"convert", Path("full"), Path("b"), "--state_dict_type=sharded", "--world_size=3"});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path("b")));
  EXPECT_EQ(source->step(), 40);
  EXPECT_EQ(source->world_size(), 3);
  const StateDict expected = TrainingState();
  ASSERT_EQ(source->contents().entries().size(), expected.entries().size());
  EXPECT_EQ(*source->contents().FindText(StateKey::ParamGroups()), *expected.FindText(StateKey::ParamGroups()));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("position")), *expected.FindText(StateKey::Extra("position")));
  EXPECT_EQ(source->contents().aliases, expected.aliases);
  ASSERT_EQ(source->contents().units.size(), 1);
  EXPECT_EQ(source->contents().units[0].parameters[1].offset, 15);
  float numbers[15];
  ASSERT_OK(source->Read(StateKey::OptimState("net.wte.weight", "exp_avg"), {0, 15}, numbers));
  for (int i = 0; i < 15; ++i) EXPECT_EQ(numbers[i], i + 1);
}

TEST_F(CkptConvertTest, SafetensorsHoldsTheModelAndThisIsSaid) {
  WriteTrainingState(Path("a"), StateDictType::kFull, 1, 40);
  const std::string out = MustCkpt({"convert", Path("a"), Path("model.safetensors")});
  EXPECT_THAT(out, AllOf(HasSubstr("3 tensors"), HasSubstr("note: 3 optimizer values are left out"),
                         HasSubstr("note: 1 extra value is left out"),
                         HasSubstr("note: \"net.head.weight\" is left out: it is \"net.wte.weight\"")));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenSafetensorsSource(Path("model.safetensors")));
  EXPECT_EQ(source->contents().entries().size(), 3);
  EXPECT_EQ(source->metadata().at("format"), "pt");
  EXPECT_THAT(MustCkpt({"convert", Path("a"), Path("m.safetensors"), "--model_only"}), Not(HasSubstr("optimizer")));
}

TEST_F(CkptConvertTest, AStateWithoutAModelIsNoSafetensors) {
  StateDict state;
  state.Set(StateKey::Extra("position"), std::string("17"));
  ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, ReadNumbers, {}));
  MustCkpt({"convert", Path("a"), Path("b")});
  const Outcome outcome = Ckpt({"convert", Path("a"), Path("c.safetensors")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the source holds no model tensor"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a", "b"));
}

TEST_F(CkptConvertTest, FiltersRenamesAndDTypes) {
  WriteTrainingState(Path("a"), StateDictType::kFull, 1, 40);
  MustCkpt({"convert", Path("a"), Path("b"), "--dtype=bfloat16", "--exclude=bias$", "--exclude=nothing",
            "--rename=^net\\.=model.", "--rename=wte=embed"});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path("b")));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("model.bias")), nullptr);
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("model.count"))->dtype, DType::kInt64);
  EXPECT_EQ(source->contents().FindTensor(StateKey::OptimState("model.embed.weight", "exp_avg"))->dtype,
            DType::kFloat32);
  EXPECT_EQ(source->contents().aliases.at("model.head.weight"), "model.embed.weight");
  EXPECT_THAT(*source->contents().FindText(StateKey::ParamGroups()), HasSubstr(R"("params":["model.embed.weight"])"));
  uint16_t bits[15];
  ASSERT_OK(source->Read(StateKey::Model("model.embed.weight"), {0, 15}, bits));
  EXPECT_EQ(bits[0], 0x3F80);   // 1
  EXPECT_EQ(bits[14], 0x4170);  // 15
  const Outcome outcome = Ckpt({"convert", Path("a"), Path("c"), "--rename=wte.weight|bias=x"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("\"model/net.wte.weight\" and \"model/net.bias\""), HasSubstr("model/net.x")));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a", "b"));
}

TEST_F(CkptConvertTest, AnExistingTargetIsRefusedWithoutForce) {
  const std::string model = TestData("all_dtypes.safetensors");
  MustCkpt({"convert", model, Path("dir")});
  MustCkpt({"convert", model, Path("file.safetensors")});
  for (const char* name : {"dir", "file.safetensors"}) {
    const Outcome outcome = Ckpt({"convert", TestData("hf_sharded"), Path(name)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(name), HasSubstr("exists; --force replaces it")));
  }
  MustCkpt({"verify", Path("dir")});
  EXPECT_EQ(ReadFile(Path("file.safetensors")), ReadFile(model));
  MustCkpt({"convert", TestData("hf_sharded"), Path("dir"), "--force"});
  EXPECT_THAT(MustCkpt({"inspect", Path("dir")}), HasSubstr("12 tensors"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("dir", "file.safetensors"));
}

TEST_F(CkptConvertTest, AFlagThatTheFormatHasNoUseForAndASuffixOfAnotherAreUsageErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"x.pt", "--to=hdf5"}, "names a torch file, but the format to write is hdf5"},
      {{"x.safetensors", "--to=hdf5"}, "names a safetensors file, but the format to write is hdf5"},
      {{"x.pt", "--to=safetensors"}, "names a torch file, but the format to write is safetensors"},
      {{"x.safetensors", "--to=torch"}, "names a safetensors file, but the format to write is torch"},
      {{"x.pt", "--to=dcp"}, "names a torch file, but the format to write is dcp"},
      {{"x.safetensors", "--to=dcp"}, "names a safetensors file, but the format to write is dcp"},
      {{"x", "--to=torch", "--parity=1"}, "--parity is for"},
      {{"x", "--to=torch", "--parity=0"}, "--parity is for"},
      {{"x", "--to=dcp", "--parity=1"}, "--parity is for"},
      {{"x", "--to=safetensors", "--parity=1"}, "--parity is for"},
  };
  for (const auto& [words, message] : cases) {
    std::vector<std::string> arguments = {"convert", TestData("all_dtypes.safetensors"), Path(words[0])};
    arguments.insert(arguments.end(), words.begin() + 1, words.end());
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_FALSE(fs::exists(Path(words[0])));
  }
}

TEST_F(CkptConvertTest, TheDirectoryToWriteInMustExist) {
  for (const char* name : {"none/dst", "none/dst.safetensors"}) {
    const Outcome outcome = Ckpt({"convert", TestData("hf_sharded"), Path(name)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("directory " + Path("none") + " does not exist; make it first"));
  }
}

TEST_F(CkptConvertTest, ForceDoesNotReplaceADirectoryOfOtherThings) {
  fs::create_directories(Path("home"));
  WriteFile(Path("home/thesis.tex"), "years of work");
  for (const char* to : {"--to=hdf5", "--to=safetensors"}) {
    const Outcome outcome = Ckpt({"convert", TestData("hf_sharded"), Path("home"), "--force", to});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("\"thesis.tex\", which is not a file of a checkpoint"));
  }
  const Outcome outcome = Ckpt({"convert", TestData("hf_sharded"), Path("home"), "--force", "--to=safetensors"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(ReadFile(Path("home/thesis.tex")), "years of work");
}

// A universal checkpoint of DeepSpeed has directories of any name.
TEST_F(CkptConvertTest, ForceReplacesACheckpointWithDirectoriesInIt) {
  const std::vector<std::string> command = {"convert", TestData("hf_sharded"), Path("run"), "--force",
                                            "--to=deepspeed"};
  ASSERT_EQ(Ckpt(command).status, 0);
  ASSERT_EQ(Ckpt(command).status, 0);
  const std::string zero = Path("run/global_step0_universal/zero");
  const std::string folder = fs::directory_iterator(zero)->path();
  for (const std::string& place : {zero, fs::is_directory(folder) ? folder : zero}) {
    WriteFile(place + "/thesis.tex", "years of work");
    const Outcome outcome = Ckpt(command);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("\"thesis.tex\", which is not a file of a checkpoint"));
    fs::remove(place + "/thesis.tex");
  }
}

TEST_F(CkptConvertTest, ADamagedSourceMakesNoTarget) {
  WriteTrainingState(Path("a"), StateDictType::kSharded, 2, 40);
  FlipBit(Path("a/rank-00001-of-00002.h5"), 4096);
  for (const char* dst : {"b", "b.safetensors"}) {
    const Outcome outcome = Ckpt({"convert", Path("a"), Path(dst)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("rank-00001-of-00002.h5"));
  }
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a"));
  const Outcome outcome = Ckpt({"verify", Path("a")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("rank-00001-of-00002.h5"));
}

TEST_F(CkptConvertTest, ABoolThatIsNoneIsAnErrorAtImport) {
  std::string bytes = ReadFile(TestData("all_dtypes.safetensors"));
  bytes.back() = 2;
  WriteFile(Path("a.safetensors"), bytes);
  const Outcome outcome = Ckpt({"convert", Path("a.safetensors"), Path("b")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("tensor \"b.bool\""), HasSubstr("element 10 is 2"), HasSubstr("a.safetensors")));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a.safetensors"));
}

TEST_F(CkptConvertTest, ARootIsItsNewestStepThatVerifies) {
  fs::create_directories(Path("root"));
  WriteTrainingState(Path("root/step-00000001"), StateDictType::kSharded, 2, 1);
  WriteTrainingState(Path("root/step-00000002"), StateDictType::kSharded, 2, 2);
  FlipBit(Path("root/step-00000002/rank-00000-of-00002.h5"), 4096);
  MustCkpt({"convert", Path("root"), Path("b")});
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("b"), "--json"}))["step"], 1);
  // verify reports the problem instead of looking for another step.
  const Outcome outcome = Ckpt({"verify", Path("root"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["path"], Path("root/step-00000002"));
  EXPECT_THAT(Ckpt({"verify", Path("root")}).out, HasSubstr("the newest step is " + Path("root/step-00000002")));
}

TEST_F(CkptConvertTest, InspectSaysWhoHoldsWhat) {
  WriteTrainingState(Path("a"), StateDictType::kSharded, 2, 7);
  const std::string text = MustCkpt({"inspect", Path("a"), "--tensors"});
  EXPECT_THAT(text,
              AllOf(HasSubstr("a sharded checkpoint of step 7, world size 2"), HasSubstr("model      3 tensors, 96 B"),
                    HasSubstr("optimizer  2 tensors, 64 B"), HasSubstr("alias  net.head.weight is net.wte.weight"),
                    HasSubstr("  model/net.bias                      float32 [7]        28 B  "
                              "rank-00000-of-00002.h5[0, 4) rank-00001-of-00002.h5[4, 7)\n")));
  const Json json = Json::parse(MustCkpt({"inspect", Path("a"), "--tensors", "--json"}));
  EXPECT_EQ(json["tensor_count"], 5);
  EXPECT_EQ(json["bytes"], 160);
  EXPECT_EQ(json["aliases"]["net.head.weight"], "net.wte.weight");
  EXPECT_EQ(json["units"][0]["numel"], 22);
}

// The limit for one file (ulimit -f) acts as a full disk for that file.
TEST_F(CkptConvertTest, AFileThatOutgrowsItsLimitIsAnErrorAndLeavesNothing) {
  WriteTrainingState(Path("a"), StateDictType::kSharded, 2, 7);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {16384, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome outcome = Ckpt({"convert", Path("a"), Path("b")});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("checkpoint.h5"),
                                 HasSubstr("files of this process are limited to 16384; raise the limit (ulimit -f)")));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a"));
}

TEST_F(CkptConvertTest, InspectNamesAMissingFile) {
  WriteTrainingState(Path("a"), StateDictType::kSharded, 2, 7);
  fs::remove(Path("a/rank-00001-of-00002.h5"));
  const Outcome outcome = Ckpt({"inspect", Path("a")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("a sharded checkpoint of step 7"));
  EXPECT_THAT(outcome.err, HasSubstr("rank-00001-of-00002.h5"));
}

TEST_F(CkptConvertTest, ManyTensorsTakeMemoryTooAndItIsSaidHowMuch) {
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < 4000; ++i) entries.push_back({absl::StrCat("layers.", i, ".weight"), DType::kFloat32, {8}});
  PlaceSafetensorsEntries(entries);
  ASSERT_OK_AND_ASSIGN(const std::string head, EncodeSafetensorsHeader({{}, entries}));
  WriteFile(Path("model.safetensors"), head + std::string(entries.back().end, '\0'));
  std::vector<std::string> conversion = {"convert",        Path("model.safetensors"),
                                         Path("dst"),      "--state_dict_type=sharded",
                                         "--world_size=4", "--max_memory=64MiB"};
  const Outcome refused = Ckpt(conversion);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("too much for --max_memory=64MiB"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("model.safetensors"));
  const std::string enough =
      refused.err.substr(refused.err.rfind("; ") + 2, refused.err.rfind(" would do") - refused.err.rfind("; ") - 2);
  conversion.back() = "--max_memory=" + enough;
  const Outcome outcome = Ckpt(conversion);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_LT(outcome.peak_bytes, std::stoll(enough) << 20);
}

// Blocks of every parity file are in memory at the same time.
TEST_F(CkptConvertTest, ParityTakesMemoryTooAndItIsSaidHowMuch) {
  std::vector<SafetensorsEntry> entries = {{"large", DType::kFloat32, {800, 80'000}}};
  PlaceSafetensorsEntries(entries);
  ASSERT_OK_AND_ASSIGN(const std::string head, EncodeSafetensorsHeader({{}, entries}));
  WriteFile(Path("model.safetensors"), head);
  fs::resize_file(Path("model.safetensors"), head.size() + entries.back().end);
  const auto convert = [&](int parity, const std::string& memory) {
    return Ckpt({"convert", Path("model.safetensors"), Path("dst"), "--state_dict_type=sharded", "--world_size=8",
                 absl::StrCat("--parity=", parity), "--max_memory=" + memory, "--force"});
  };
  for (const int parity : {1, 2, 8}) {
    Outcome outcome = convert(parity, "64MiB");
    int64_t limit = 64;
    if (outcome.status != 0) {
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(", and parity "), HasSubstr("too much for --max_memory=64MiB; ")));
      ASSERT_TRUE(absl::SimpleAtoi(outcome.err.substr(outcome.err.rfind("; ") + 2,
                                                      outcome.err.rfind("MiB would do") - outcome.err.rfind("; ") - 2),
                                   &limit));
      outcome = convert(parity, absl::StrCat(limit, "MiB"));
    }
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_LT(outcome.peak_bytes, limit << 20) << parity;
    MustCkpt({"verify", Path("dst")});
  }
}

TEST_F(CkptConvertTest, MemoryStaysUnderTheLimitHoweverLargeTheModel) {
  // A model of 400 MB, as a file with holes: it reads as zeros.
  std::vector<SafetensorsEntry> entries = {{"large", DType::kFloat32, {1000, 80'000}},
                                           {"small", DType::kFloat32, {20'000'000}}};
  PlaceSafetensorsEntries(entries);
  ASSERT_OK_AND_ASSIGN(const std::string head, EncodeSafetensorsHeader({{}, entries}));
  WriteFile(Path("model.safetensors"), head);
  fs::resize_file(Path("model.safetensors"), head.size() + entries.back().end);
  constexpr int64_t kLimit = int64_t{64} << 20;
  const std::vector<std::vector<std::string>> conversions = {
      {"convert", Path("model.safetensors"), Path("sharded"), "--state_dict_type=sharded", "--world_size=3"},
      {"convert", Path("sharded"), Path("local"), "--state_dict_type=local", "--world_size=2"},
      {"convert", Path("local"), Path("full"), "--dtype=bfloat16"},
      {"convert", Path("full"), Path("back"), "--to=safetensors", "--dtype=float32", "--max_shard_size=100MB"},
  };
  for (std::vector<std::string> conversion : conversions) {
    conversion.push_back("--max_memory=64MiB");
    const Outcome outcome = Ckpt(conversion);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_LT(outcome.peak_bytes, kLimit) << conversion[2];
    RecordProperty(absl::StrCat("peak_bytes_", conversion[2]), absl::StrCat(outcome.peak_bytes));
  }
}

}  // namespace
}  // namespace fsdp
