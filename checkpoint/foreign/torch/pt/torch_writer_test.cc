// SPDX-License-Identifier: Apache-2.0
//
// State dicts written as a torch file or a DCP directory are read back whole. torch_oracle_test checks that torch
// itself reads them.
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_encoding.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_tensors.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_writer.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/pt/wheel_index.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/foreign/torch/state/value_notes.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// Checks that the checkpoint at `path` has every tensor and text of AwkwardTensors().
void ExpectWhole(const std::string& path) {
  const std::vector<TestTensor> tensors = AwkwardTensors();
  StateDict wanted = WantedState(tensors, 1, 0);
  ASSERT_OK(LoadCheckpoint(path, wanted));
  const std::string* groups = wanted.FindText(StateKey::ParamGroups());
  const StateDict full = FullState(tensors);
  EXPECT_EQ(nlohmann::json::parse(*groups), nlohmann::json::parse(*full.FindText(StateKey::ParamGroups())));
  wanted.Set(StateKey::ParamGroups(), *full.FindText(StateKey::ParamGroups()));
  EXPECT_OK(CheckState(tensors, wanted));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_EQ(source->contents().entries().size(), full.entries().size());
}

TEST(TorchWriterTest, AFileComesBackWhole) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string path = NewTestDirectory() + "/state.pt";
  ASSERT_OK(WriteTorchFile(path, state, ReadFromMemory(state)));
  ExpectWhole(path);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_THAT(source->contents().aliases, ElementsAre(Pair("lm_head.weight", "wte.weight")));
}

class DcpWriterTest : public testing::TestWithParam<int> {};

TEST_P(DcpWriterTest, ADirectoryComesBackWhole) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string path = NewTestDirectory() + "/dcp";
  ASSERT_OK(WriteDcpDirectory(path, state, GetParam(), ReadFromMemory(state)));
  ExpectWhole(path);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_EQ(source->world_size(), GetParam());
  // To torch the other name is a tensor of its own; that the two have the same bytes tells a reader what it is.
  EXPECT_THAT(source->contents().aliases, ElementsAre(Pair("lm_head.weight", "wte.weight")));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, DcpWriterTest, testing::Values(1, 2, 3, 7));

// An optimizer's dicts and lists are what its names say, not names with dots: read back, those would be other names.
TEST(TorchWriterTest, NestedStateOfAnOptimizerIsNestedInTheFile) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Model("w"), tensor);
  for (const char* name : {"exp_avg", "quant.absmax", "quant.a%2Eb", "GG.[0]", "GG.[1].x"}) {
    state.Set(StateKey::OptimState("w", name), tensor);
  }
  state.Set(StateKey::ParamGroups(), R"([{"params":["w"]}])");
  state.Set(ExtraOfState("w", "quant.type"), "nf4");
  state.Set(ExtraOfState("w", "GG.[2]"), "null");
  const std::string directory = NewTestDirectory();
  ASSERT_OK(WriteDcpDirectory(directory + "/dcp", state, 2, ZeroPayload()));
  ASSERT_OK(WriteTorchFile(directory + "/x.pt", state, ZeroPayload()));
  for (const char* name : {"/x.pt", "/dcp"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory + name));
    for (const auto& [key, value] : state.entries()) {
      EXPECT_TRUE(source->contents().contains(key)) << name << " " << key.ToString();
    }
  }
  state.Set(StateKey::OptimState("w", "GG.[4]"), tensor);
  EXPECT_THAT(WriteDcpDirectory(directory + "/lacking", state, 2, ZeroPayload()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"optim.state.w.GG.4\" is in a list that lacks the element before it")));
}

// As JAX has it.
TEST(TorchWriterTest, AnOptimizerWithoutGroupsStaysAnOptimizer) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Model("w"), tensor);
  state.Set(StateKey::OptimState("w", "mu"), tensor);
  const std::string directory = NewTestDirectory();
  ASSERT_OK(WriteDcpDirectory(directory + "/dcp", state, 2, ZeroPayload()));
  ASSERT_OK(WriteTorchFile(directory + "/x.pt", state, ZeroPayload()));
  for (const char* name : {"/x.pt", "/dcp"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory + name));
    EXPECT_TRUE(source->contents().contains(StateKey::OptimState("w", "mu"))) << name;
    const std::string* const groups = source->contents().FindText(StateKey::ParamGroups());
    ASSERT_NE(groups, nullptr) << name;
    EXPECT_EQ(*groups, "[]") << name;
  }
}

// Ranks that share the work have the elements of a list each in a part of .metadata.
TEST(TorchWriterTest, ElementsOfAListAreReadInAnyOrderOfTheMetadata) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Model("w"), tensor);
  for (int i = 0; i < 12; ++i) state.Set(StateKey::OptimState("w", absl::StrCat("Q.[", i, "].x.[0]")), tensor);
  state.Set(StateKey::ParamGroups(), R"([{"lr":0.5,"params":["w"]},{"lr":0.25,"params":[]}])");
  const std::string directory = NewTestDirectory() + "/dcp";
  ASSERT_OK(WriteDcpDirectory(directory, state, 1, ZeroPayload()));
  ASSERT_OK_AND_ASSIGN(DcpMetadata metadata, ReadDcpMetadata(directory));
  std::reverse(metadata.entries.begin(), metadata.entries.end());
  WriteAll(directory + "/" + kDcpMetadataName, EncodeDcpMetadata(metadata));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory));
  EXPECT_EQ(source->contents().entries().size(), state.entries().size());
  for (const auto& [key, value] : state.entries()) EXPECT_TRUE(source->contents().contains(key)) << key.ToString();
}

// Hyperparameters of a capturable optimizer: numbers in checkpoints of this project, tensors in torch's.
TEST(TorchWriterTest, TensorsOfParamGroupsStayTensors) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {1};
  state.Set(StateKey::Model("w"), tensor);
  const std::string groups =
      R"([{"lr":0.0010000000474974513,"betas":[0.9,0.95],"mask":{"__python__":"tensor","dtype":"bool","shape":[2],)"
      R"("hex":"0001"},"params":["w"],"__tensors__":{"lr":"float32","betas.1":"float64"}}])";
  state.Set(StateKey::ParamGroups(), groups);
  const std::string directory = NewTestDirectory();
  ASSERT_OK(WriteTorchFile(directory + "/x.pt", state, ZeroPayload()));
  ASSERT_OK(WriteDcpDirectory(directory + "/dcp", state, 2, ZeroPayload()));
  for (const char* name : {"/x.pt", "/dcp"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory + name));
    const std::string* text = source->contents().FindText(StateKey::ParamGroups());
    ASSERT_NE(text, nullptr) << name;
    const nlohmann::json read = nlohmann::json::parse(*text);
    const nlohmann::json wrote = nlohmann::json::parse(groups);
    for (const char* member : {"lr", "betas", "mask", "params", "__tensors__"}) {
      EXPECT_EQ(read.at(0).value(member, nlohmann::json()), wrote.at(0).value(member, nlohmann::json()))
          << name << " " << member;
    }
  }
  const std::string bytes = ReadFile(directory + "/x.pt");
  EXPECT_NE(bytes.find(std::string("\x6f\x12\x83\x3a", 4)), bytes.npos);  // 0.001 as float32
}

TEST(TorchWriterTest, PartsOfAnExtraValueAreWrittenInsideIt) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  const std::string text =
      absl::StrCat(R"({"cuda":[)", ReferenceText("rng.cuda.0"), R"(],"pair":{"__python__":"tuple","items":[)",
                   ReferenceText("rng.pair.0"), R"(]},"steps":)", ReferenceText("rng.steps"), "}");
  for (const char* name : {"rng.cuda.0", "rng.pair.0", "other"}) state.Set(StateKey::Extra(name), tensor);
  state.Set(StateKey::Model("w"), tensor);
  state.Set(StateKey::Extra("rng"), text);
  state.Set(StateKey::Extra("rng.steps"), std::string(R"({"__python__":"Counter","items":[[2,1]]})"));
  const std::string directory = NewTestDirectory();
  ASSERT_OK(WriteTorchFile(directory + "/x.pt", state, ZeroPayload()));
  ASSERT_OK(WriteDcpDirectory(directory + "/dcp", state, 2, ZeroPayload()));
  for (const char* name : {"/x.pt", "/dcp"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory + name));
    EXPECT_EQ(source->contents().entries().size(), state.entries().size()) << name;
    for (const auto& [key, value] : state.entries()) EXPECT_TRUE(source->contents().contains(key)) << key.ToString();
    EXPECT_EQ(*source->contents().FindText(StateKey::Extra("rng")), text) << name;
    EXPECT_EQ(*source->contents().FindText(StateKey::Extra("rng.steps")),
              *state.FindText(StateKey::Extra("rng.steps")));
  }
}

// A text of a checkpoint of ours may have an untrusted origin: it must not become a call in a pickle.
TEST(TorchWriterTest, NoTextBecomesACallOfAnythingButTorch) {
  StateDict state;
  const std::string call = R"({"__python__":"call","name":"os.system","items":["touch x"]})";
  state.Set(StateKey::Extra("note"), call);
  const std::string path = NewTestDirectory() + "/x.pt";
  ASSERT_OK(WriteTorchFile(path, state, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("note")), call);
  EXPECT_EQ(ReadFile(path).find("system\n"), std::string::npos);
  state.Set(StateKey::ParamGroups(), absl::StrCat("[{\"lr\":", call, ",\"params\":[]}]"));
  EXPECT_THAT(WriteTorchFile(path, state, nullptr, {.overwrite = true}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names a Python object")));
}

TEST(TorchWriterTest, EveryEntryHasItsCrcAndBeginsAtAMultipleOf64) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string path = NewTestDirectory() + "/state.pt";
  TorchWriteOptions options;
  options.buffer_bytes = 1 << 17;  // pieces of one entry are assembled
  ASSERT_OK(WriteTorchFile(path, state, ReadFromMemory(state), options));
  const std::string bytes = ReadFile(path);
  ASSERT_OK_AND_ASSIGN(const auto file, PosixFileSystem().Open(path));
  ASSERT_OK_AND_ASSIGN(const FileSlice slice, FileSlice::Whole(*file));
  ASSERT_OK_AND_ASSIGN(const auto entries, ReadZipDirectory(slice));
  for (const ZipEntry& entry : entries) {
    EXPECT_EQ(entry.payload_offset % 64, 0) << entry.name;
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data()) + entry.payload_offset;
    EXPECT_EQ(entry.crc, Crc32(absl::MakeConstSpan(begin, entry.nbytes))) << entry.name;
  }
}

TEST(TorchWriterTest, AModelAloneIsAPlainStateDict) {
  StateDict state;
  state.Set(StateKey::Model("w"), ShardedTensor{DType::kFloat32, {2}, {}, 0});
  ASSERT_OK_AND_ASSIGN(const EncodedTorchState encoded, EncodeTorchState(state));
  EXPECT_EQ(encoded.pickle.find("model"), std::string::npos);
  state.Set(StateKey::Extra("step"), std::string("7"));
  ASSERT_OK_AND_ASSIGN(const EncodedTorchState nested, EncodeTorchState(state));
  EXPECT_THAT(nested.pickle, HasSubstr("model"));
}

TEST(TorchWriterTest, GroupsSayWhatPyTorchWantsToKnow) {
  ASSERT_OK_AND_ASSIGN(const PythonJson groups, TorchParamGroups(R"([{"params":["w"],"lr":0.1,"betas":[0.9,0.99]}])"));
  EXPECT_EQ(
      groups.dump(),
      R"([{"params":["w"],"lr":0.1,"betas":{"__python__":"tuple","items":[0.9,0.99]},"amsgrad":false,"maximize":false,)"
      R"("foreach":null,"capturable":false,"differentiable":false,"fused":null,"decoupled_weight_decay":true}])");
  EXPECT_THAT(TorchParamGroups("{"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a JSON array")));
}

// An Adam with "decoupled_weight_decay" would be an AdamW; RMSprop and Muon have no "dampening".
TEST(TorchWriterTest, GroupsOfPyTorchStayAsTheyAre) {
  for (
      const std::string json :
      {R"([{"params":["w"],"lr":0.1,"betas":{"__python__":"tuple","items":[0.9,0.99]},"amsgrad":true,"foreach":null}])",
       R"([{"params":["w"],"lr":0.1,"momentum":0.5,"alpha":0.99,"centered":true,"foreach":null}])",
       R"([{"params":["w"],"lr":0.1,"momentum":0.95,"nesterov":true,"ns_steps":5}])"}) {
    ASSERT_OK_AND_ASSIGN(const PythonJson groups, TorchParamGroups(json));
    EXPECT_EQ(groups.dump(), json);
  }
}

TEST(TorchWriterTest, TheIndexOfTheWheelIsLeftOutAndPicklesAreNamed) {
  const StateKey index = StateKey::Extra("torch.distributed.checkpoint");
  StateDict state;
  state.Set(StateKey::Extra("x"), std::string("1"));
  state.Set(index, std::string(R"({"version": 1, "keys": {"x": ["python", "extra/x", ["x"]],)"
                               R"( "rng": ["torch.save", "extra/rng", ["rng"]]}})"));
  EXPECT_THAT(TakeWheelIndex(state), ElementsAre(HasSubstr("\"rng\" is written as the bytes of a pickle")));
  EXPECT_FALSE(state.contains(index));
  EXPECT_TRUE(state.contains(StateKey::Extra("x")));
  for (const char* text : {"a text of a user", "{}", R"({"version": 1, "keys": []})"}) {
    state.Set(index, std::string(text));
    EXPECT_THAT(TakeWheelIndex(state), testing::IsEmpty());
    EXPECT_TRUE(state.contains(index)) << text;
  }
}

// As Writer saves {"scheduler": {"gamma": 0.5, "lrs": [1, 2]}, "second": {"state": {0: {"step": 3}}}}: DCP makes a
// text of 0.
TEST(TorchWriterTest, WhatTheWheelHasFlattenedIsNestedAgain) {
  const auto indexed = [](std::vector<std::string> entries) {
    StateDict state;
    std::vector<std::string> keys;
    for (const std::string& path : entries) {
      std::string name = absl::StrReplaceAll(path, {{"\"", ""}, {", ", "."}});
      keys.push_back(absl::StrCat("\"", name, "\": [\"python\", \"extra/", name, "\", [", path, "]]"));
      state.Set(StateKey::Extra(name), std::string("1"));
    }
    state.Set(StateKey::Extra("torch.distributed.checkpoint"),
              absl::StrCat(R"({"version": 1, "keys": {)", absl::StrJoin(keys, ", "), "}}"));
    EXPECT_THAT(TakeWheelIndex(state), testing::IsEmpty());
    return state;
  };
  const StateDict nested = indexed({R"("scheduler", "lrs", 0)", R"("scheduler", "lrs", 1)", R"("scheduler", "gamma")",
                                    R"("second", "state", "0", "step")", R"("third", 2, "x")", R"("epoch")"});
  EXPECT_EQ(*nested.FindText(StateKey::Extra("scheduler")),
            R"({"lrs":[{"__python__":"reference","name":"scheduler.lrs.0"},)"
            R"({"__python__":"reference","name":"scheduler.lrs.1"}],)"
            R"("gamma":{"__python__":"reference","name":"scheduler.gamma"}})");
  EXPECT_EQ(*nested.FindText(StateKey::Extra("second")),
            R"({"state":{"0":{"step":{"__python__":"reference","name":"second.state.0.step"}}}})");
  EXPECT_EQ(*nested.FindText(StateKey::Extra("third")),
            R"({"__python__":"dict","items":[[2,{"x":{"__python__":"reference","name":"third.2.x"}}]]})");
  EXPECT_EQ(*nested.FindText(StateKey::Extra("epoch")), "1");
  EXPECT_OK(PartsOfExtras(nested));
  // A value cannot be a dict, too.
  for (const auto& [value, member] :
       {std::pair(R"("a", "b")", R"("a", "b", "c")"), std::pair(R"("a", "b", "c")", R"("a", "b")")}) {
    EXPECT_EQ(indexed({value, member}).FindText(StateKey::Extra("a")), nullptr);
  }
}

// A dict with a tensor under the usual name would be a second model for every reader.
TEST(TorchWriterTest, AnExtraValueWithTensorsMayNotTakeThePlaceOfTheModel) {
  StateDict state;
  state.Set(StateKey::Extra("w"), ShardedTensor());
  state.Set(StateKey::Extra("model"), "[" + ReferenceText("w") + "]");
  const std::string path = NewTestDirectory() + "/x";
  EXPECT_THAT(WriteTorchFile(path, state, ReadFromMemory(state)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("extra value \"model\"")));
  EXPECT_THAT(WriteDcpDirectory(path, state, 1, ReadFromMemory(state)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("extra value \"model\"")));
}

// {"model": "resnet18", "state_dict": ...} is what many programs save.
TEST(TorchWriterTest, APlainExtraValueKeepsTheNameOfTheModelAndOfTheOptimizer) {
  StateDict state;
  state.Set(StateKey::Extra("model"), std::string("resnet18"));
  state.Set(StateKey::Extra("optim"), std::string("x"));
  EXPECT_THAT(NotesOnBranchKeys(state), IsEmpty());
  const absl::StatusOr<EncodedTorchState> without_model = EncodeTorchState(state);
  ASSERT_OK(without_model);
  EXPECT_EQ(without_model->pickle.find("state_dict"), std::string::npos);
  state.Set(StateKey::Model("w"), ShardedTensor{DType::kFloat32, {0}, {}});
  EXPECT_THAT(NotesOnBranchKeys(state),
              ElementsAre("the model is written as \"state_dict\": an extra value is named \"model\""));
  state.Set(StateKey::ParamGroups(), std::string("[]"));
  EXPECT_EQ(BranchKeysOf(state).model, "state_dict");
  EXPECT_EQ(BranchKeysOf(state).optim, "optimizer");
  EXPECT_THAT(NotesOnBranchKeys(state), Contains(HasSubstr("the optim is written as \"optimizer\"")));
  for (const char* name : {"state_dict", "module", "model_state_dict"}) {
    EXPECT_OK(WriteTorchFile(NewTestDirectory() + "/x.pt", state, ReadFromMemory(state))) << name;
    state.Set(StateKey::Extra(name), std::string("x"));
  }
  EXPECT_THAT(WriteTorchFile(NewTestDirectory() + "/x.pt", state, ReadFromMemory(state)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("extra value \"model\"")));
}

}  // namespace
}  // namespace fsdp
