// SPDX-License-Identifier: Apache-2.0
//
// Opens checkpoint.h5 with h5py, which has no knowledge of this project: whole tensors under their own names, for all
// three kinds.
#include <stdlib.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr char kScript[] = "checkpoint/native/testdata/check_with_h5py.py";

// Debian's interpreter, which can have python3-h5py; else the first in PATH.
std::string Python() { return PosixFileSystem().Exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3"; }

// Writes the contents of `state` for the script; returns the path of the list.
std::string WriteExpected(const std::vector<TestTensor>& tensors, const StateDict& state) {
  const std::string directory = NewTestDirectory();
  nlohmann::json items = nlohmann::json::array();
  for (const TestTensor& tensor : tensors) {
    const std::string bytes = absl::StrCat(directory, "/", items.size());
    const Tensor whole = MakeElements(tensor, {0, tensor.shape.numel()});
    WriteAll(bytes, std::string(whole.data_as<char>(), whole.nbytes()));
    nlohmann::json item = {{"path", DatasetPath(tensor.key)},
                           {"dtype", std::string(DTypeName(tensor.dtype))},
                           {"shape", std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end())},
                           {"bytes", bytes}};
    const std::string& name = tensor.key.state.empty() ? tensor.key.fqn : tensor.key.state;
    item["fqn"] = name;
    items.push_back(item);
  }
  for (const auto& [key, value] : state.entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      items.push_back({{"path", DatasetPath(key)}, {"text", *text}});
    }
  }
  WriteAll(directory + "/expected.json", items.dump());
  return directory + "/expected.json";
}

// Runs the script on ROOT/step-00000001; skips the test without h5py.
void ExpectShown(const std::string& root, const std::vector<TestTensor>& tensors) {
  const std::string expected = WriteExpected(tensors, FullState(tensors));
  const int result = system(absl::StrCat(Python(), " ", kScript, " ", root, "/step-00000001 ", expected).c_str());
  ASSERT_TRUE(WIFEXITED(result));
  if (WEXITSTATUS(result) == 77 || WEXITSTATUS(result) == 127) GTEST_SKIP() << "needs python3-h5py";
  EXPECT_EQ(WEXITSTATUS(result), 0);
}

class H5pyTest : public testing::TestWithParam<std::tuple<StateDictType, int>> {};

TEST_P(H5pyTest, ShowsWholeTensors) {
  const StateDictType type = std::get<0>(GetParam());
  const int world_size = std::get<1>(GetParam());
  const std::vector<TestTensor> tensors = AwkwardTensors();
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(StateOf(type, tensors, world_size, group->rank()), root, 1, *group).status();
  }));
  ExpectShown(root, tensors);
}

// Slices that cut rows are shown through unions of hyperslabs.
TEST(H5pySlicesTest, ShowsTensorsThatAreCutAnywhere) {
  const TestTensor tensor = {StateKey::Model("wte.weight"), DType::kFloat32, {37, 11, 5}};
  const std::vector<Interval> cuts = {{0, 3}, {3, 700}, {700, 701}, {701, 2035}};
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(4, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = ShardedState({tensor}, 4, group->rank());
    ShardedTensor sharded = *state.FindTensor(tensor.key);
    const Interval cut = cuts[group->rank()];
    sharded.shards = {{cut, MakeElements(tensor, cut)}};
    state.Set(tensor.key, sharded);
    return SaveCheckpoint(state, root, 1, *group).status();
  }));
  ExpectShown(root, {tensor});
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, H5pyTest,
    testing::Values(std::make_tuple(StateDictType::kFull, 1), std::make_tuple(StateDictType::kSharded, 1),
                    std::make_tuple(StateDictType::kSharded, 3), std::make_tuple(StateDictType::kSharded, 8),
                    std::make_tuple(StateDictType::kLocal, 1), std::make_tuple(StateDictType::kLocal, 3),
                    std::make_tuple(StateDictType::kLocal, 8)));

}  // namespace
}  // namespace fsdp
