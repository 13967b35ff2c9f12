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

StateDict State(const std::vector<TestTensor>& tensors) {
  StateDict state = FullState(tensors);
  state.Set(StateKey::ParamGroups(), std::string(kGroups));
  state.Set(StateKey::Extra("step"), std::string("7"));
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
