// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/hdf5_sink.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/read/native_source.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(Hdf5SinkTest, CheckpointsOfAllKindsVerifyAndLoad) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  StateDict state = FullState(tensors);
  const struct {
    StateDictType type;
    int world_size;
    std::vector<FlatUnitLayout> units;
  } kCases[] = {{StateDictType::kFull, 1, {}},           {StateDictType::kSharded, 1, {}},
                {StateDictType::kSharded, 5, {}},        {StateDictType::kLocal, 1, FlatUnits()},
                {StateDictType::kLocal, 5, FlatUnits()}, {StateDictType::kLocal, 3, {}}};
  for (const auto& kind : kCases) {
    CheckpointDirectoryOptions options;
    options.type = kind.type;
    options.world_size = kind.world_size;
    options.step = 7;
    state.units = kind.units;
    const std::string path = absl::StrCat(root, "/converted-", &kind - kCases);
    ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
    EXPECT_THAT(report.problems, IsEmpty());
    StateDict wanted = WantedState(tensors, 1, 0);
    EXPECT_OK(LoadCheckpoint(path, wanted));
    EXPECT_OK(CheckState(tensors, wanted));
    EXPECT_THAT(CheckpointStep(path), IsOkAndHolds(7));
  }
}

// Regression: each tensor of less than a page was a write, and its bytes stayed in memory until the end.
TEST(Hdf5SinkTest, ThousandsOfSmallTensorsAreFewWrites) {
  constexpr int kTensors = 3000;
  const PayloadReader read = [](const StateKey& key, const Interval& interval, void* out) {
    for (int64_t i = 0; i < interval.size(); ++i) static_cast<float*>(out)[i] = static_cast<float>(key.fqn.size() + i);
    return absl::OkStatus();
  };
  for (const int64_t numel : {1, 93, 500, 513, 1023, 5000}) {
    StateDict state;
    for (int i = 0; i < kTensors; ++i) {
      ShardedTensor tensor;
      tensor.shape = *Shape::Create({numel + i % 3});
      state.Set(StateKey::Model(absl::StrCat("experts.", i, ".scale")), std::move(tensor));
    }
    const std::string root = NewTestDirectory();
    FaultFileSystem files(PosixFileSystem(), NewTestDirectory());
    ASSERT_OK(WriteCheckpointDirectory(root + "/sink", state, read, {.file_system = &files}));
    // HDF5 writes the strings of attributes between the tensors, one block for about 30 tensors.
    EXPECT_LE(files.operations(), 50 + kTensors / 30 + kTensors * numel * 4 / 200'000) << numel;
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(root + "/sink"));
    EXPECT_THAT(report.problems, IsEmpty()) << numel;
    ASSERT_OK_AND_ASSIGN(const auto source, OpenNativeSource(root + "/sink", {}));
    for (const auto& [key, value] : state.entries()) {
      std::vector<float> elements(std::get<ShardedTensor>(value).shape.numel());
      std::vector<float> expected = elements;
      const Interval whole = {0, static_cast<int64_t>(elements.size())};
      ASSERT_OK(source->Read(key, whole, elements.data()));
      ASSERT_OK(read(key, whole, expected.data()));
      ASSERT_EQ(elements, expected) << key.ToString();
    }
  }
}

TEST(Hdf5SinkTest, OneProcessGivesTheFilesThatRanksWouldGive) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(ShardedState(tensors, 3, group->rank()), root, 7, *group).status();
  }));
  const StateDict state = FullState(tensors);
  ASSERT_OK(WriteCheckpointDirectory(root + "/sink", state, ReadFromMemory(state),
                                     {.type = StateDictType::kSharded, .world_size = 3, .step = 7}));
  EXPECT_EQ(ReadFile(root + "/sink/checkpoint.h5"), ReadFile(root + "/step-00000007/checkpoint.h5"));
}

TEST(Hdf5SinkTest, OneProcessGivesTheFlatShardsThatRanksWouldGive) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(LocalState(tensors, 3, group->rank()), root, 7, *group).status();
  }));
  StateDict state = FullState(tensors);
  state.units = FlatUnits();
  ASSERT_OK(WriteCheckpointDirectory(root + "/sink", state, ReadFromMemory(state),
                                     {.type = StateDictType::kLocal, .world_size = 3, .step = 7}));
  EXPECT_EQ(ReadFile(root + "/sink/checkpoint.h5"), ReadFile(root + "/step-00000007/checkpoint.h5"));
}

}  // namespace
}  // namespace fsdp
