// SPDX-License-Identifier: Apache-2.0
//
// The real PyTorch, if python3 has it, reads our files and finds equal bits.
#include <stdlib.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_writer.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Json = nlohmann::json;
using Section = StateKey::Section;

constexpr char kScript[] = "checkpoint/foreign/torch/testdata/check_with_torch.py";
constexpr char kGroups[] =
    R"([{"params":["wte.weight"],"lr":0.001,"betas":[0.9,0.95]},{"params":["h.0.bias"],"lr":0.5,"betas":[0.9,0.95]}])";

Json PathOf(const StateKey& key) {
  if (key.section == Section::kModel) return {"model", key.fqn};
  if (key.section == Section::kOptimState) return {"optim", "state", key.fqn, key.state};
  return {key.fqn};
}

// Small tensors, because torch is slow.
std::vector<TestTensor> Tensors() {
  std::vector<TestTensor> tensors;
  for (const TestTensor& tensor : AwkwardTensors()) {
    const bool is_large = tensor.key.fqn == "large";
    if (!is_large) tensors.push_back(tensor);
  }
  tensors.push_back({StateKey::OptimState("h.0.bias", "exp_avg"), DType::kFloat32, {7}});
  return tensors;
}

// Values that JSON lacks: their names, texts and what Python shows.
struct PythonValue {
  const char* name;
  const char* text;
  const char* repr;
};

constexpr PythonValue kPythonValues[] = {
    {"milestones", R"({"__python__":"Counter","items":[[2,2],[5,1]]})", "Counter({2: 2, 5: 1})"},
    {"order", R"({"__python__":"OrderedDict","items":[["b",1],["a",2]]})", "OrderedDict([('b', 1), ('a', 2)])"},
    {"seed", R"({"__python__":"int","hex":"ffffffffffffffff00"})", "18446744073709551615"},
    {"wide", R"({"__python__":"int","hex":"ffffffffffffff7fff"})", "-9223372036854775809"},
    {"unsigned", "18446744073709551615", "18446744073709551615"},
    {"tokens", R"({"__python__":"bytearray","hex":"ff3100"})", R"(bytearray(b'\xff1\x00'))"},
    {"raw", R"({"__python__":"bytes","hex":"ff3100"})", R"(b'\xff1\x00')"},
    {"phase", R"({"__python__":"complex","items":[1.0,2.0]})", "(1+2j)"},
    {"lone", R"({"__python__":"str","hex":"eda080"})", R"('\ud800')"},
    {"by_id", R"({"__python__":"dict","items":[[30,[{"__python__":"tuple","items":[null,true]}]]]})",
     "{30: [(None, True)]}"},
};

StateDict State(const std::vector<TestTensor>& tensors) {
  StateDict state = FullState(tensors);
  state.Set(StateKey::ParamGroups(), std::string(kGroups));
  state.Set(StateKey::Extra("step"), std::string("7"));
  for (const PythonValue& value : kPythonValues) state.Set(StateKey::Extra(value.name), std::string(value.text));
  return state;
}

// Writes the contents of `tensors` for the script; returns the path of the list.
std::string WriteExpected(const std::vector<TestTensor>& tensors) {
  const std::string directory = NewTestDirectory();
  Json list = {{"tensors", Json::array()}, {"values", Json::array()}};
  const auto add = [&](const Json& path, const TestTensor& tensor) {
    const std::string bytes = absl::StrCat(directory, "/", list["tensors"].size());
    const Tensor whole = MakeElements(tensor, {0, tensor.shape.numel()});
    WriteAll(bytes, std::string(whole.data_as<char>(), whole.nbytes()));
    list["tensors"].push_back({{"path", path},
                               {"dtype", std::string(DTypeName(tensor.dtype))},
                               {"shape", std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end())},
                               {"bytes", bytes}});
  };
  for (const TestTensor& tensor : tensors) {
    add(PathOf(tensor.key), tensor);
    if (tensor.key == StateKey::Model("wte.weight")) add({"model", "lm_head.weight"}, tensor);
  }
  list["values"].push_back({{"path", {"step"}}, {"value", 7}});
  list["values"].push_back({{"path", {"optim", "param_groups", 0, "betas"}}, {"value", {0.9, 0.95}}});
  list["values"].push_back({{"path", {"optim", "param_groups", 1, "lr"}}, {"value", 0.5}});
  list["values"].push_back({{"path", {"optim", "param_groups", 1, "params"}}, {"value", {"h.0.bias"}}});
  for (const PythonValue& value : kPythonValues) {
    list["values"].push_back({{"path", {value.name}}, {"repr", value.repr}});
  }
  WriteAll(directory + "/expected.json", list.dump());
  return directory + "/expected.json";
}

void ExpectTorchReads(const std::string& path, const std::vector<TestTensor>& tensors) {
  const int result = system(absl::StrCat("python3 ", kScript, " ", path, " ", WriteExpected(tensors)).c_str());
  ASSERT_TRUE(WIFEXITED(result));
  if (WEXITSTATUS(result) == 77 || WEXITSTATUS(result) == 127) GTEST_SKIP() << "needs a python3 with torch";
  EXPECT_EQ(WEXITSTATUS(result), 0);
}

TEST(TorchOracleTest, TorchLoadReadsOurFile) {
  const std::vector<TestTensor> tensors = Tensors();
  const StateDict state = State(tensors);
  const std::string path = NewTestDirectory() + "/state.pt";
  ASSERT_OK(WriteTorchFile(path, state, ReadFromMemory(state)));
  ExpectTorchReads(path, tensors);
}

TEST(TorchOracleTest, DistributedCheckpointReadsOurDirectoryAtOneTwoAndThreeRanks) {
  const std::vector<TestTensor> tensors = Tensors();
  const StateDict state = State(tensors);
  const std::string path = NewTestDirectory() + "/dcp";
  ASSERT_OK(WriteDcpDirectory(path, state, 4, ReadFromMemory(state)));
  ExpectTorchReads(path, tensors);
}

}  // namespace
}  // namespace fsdp
