// SPDX-License-Identifier: Apache-2.0
//
// Incremental saves are as good as any other, even after the earlier checkpoint is deleted.
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 2;

// A frozen model and an adapter, whose elements change in every save.
const TestTensor kFrozen = {StateKey::Model("frozen.weight"), DType::kFloat32, {1200, 1000}};
const TestTensor kFrozenBias = {StateKey::Model("frozen.bias"), DType::kFloat32, {37}};
const TestTensor kAdapter = {StateKey::Model("adapter.weight"), DType::kFloat32, {40, 10}};

class IncrementalTest : public testing::TestWithParam<StateDictType> {
 protected:
  static std::vector<FlatUnitLayout> Units() {
    return {{"frozen", {{"frozen.weight", 0, 1200000}, {"frozen.bias", 1200000, 37}}, 1200037},
            {"adapter", {{"adapter.weight", 0, 400}}, 400}};
  }

  static StateDict State(int rank, int64_t step) {
    const std::vector<TestTensor> tensors = {kFrozen, kFrozenBias, kAdapter};
    StateDict state = GetParam() == StateDictType::kLocal ? LocalState(tensors, kRanks, rank, Units())
                                                          : ShardedState(tensors, kRanks, rank);
    state.aliases.clear();
    for (const ShardedTensor::Shard& shard : state.FindTensor(kAdapter.key)->shards) {
      shard.data.data_as<float>()[0] = static_cast<float>(step);
    }
    return state;
  }

  std::string Path(int64_t step) const { return JoinPath(root_, StepName(step)); }

  void Save(int64_t step, const std::string& base, int parity = 0) {
    ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
      SaveOptions options;
      options.base = base;
      options.parity = parity;
      options.note = [&](const std::string& sentence) { notes_.push_back(sentence); };
      return SaveCheckpoint(State(group->rank(), step), root_, step, *group, options).status();
    }));
  }

  void ExpectHolds(int64_t step) {
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(Path(step)));
    EXPECT_THAT(report.problems, IsEmpty());
    ExpectLoads(Path(step), step);
  }

  static void ExpectLoads(const std::string& path, int64_t step) {
    const std::vector<TestTensor> tensors = {kFrozen, kFrozenBias, kAdapter};
    StateDict wanted = WantedState(tensors, 1, 0);
    ASSERT_OK(LoadCheckpoint(path, wanted));
    float* const adapter = wanted.FindTensor(kAdapter.key)->shards[0].data.data_as<float>();
    const int64_t second = 200;  // the first element of rank 1
    EXPECT_EQ(adapter[0], static_cast<float>(step));
    EXPECT_EQ(adapter[second], static_cast<float>(step));
    const Tensor expected = MakeElements(kAdapter, {0, 400});
    adapter[0] = expected.data_as<float>()[0];
    adapter[second] = expected.data_as<float>()[second];
    EXPECT_OK(CheckState(tensors, wanted));
  }

  // Bytes of files that only this step has.
  int64_t OwnBytes(int64_t step) const {
    int64_t nbytes = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(Path(step))) {
      if (entry.hard_link_count() == 1) nbytes += static_cast<int64_t>(entry.file_size());
    }
    return nbytes;
  }

  const std::string root_ = NewTestDirectory();
  std::vector<std::string> notes_;
};

TEST_P(IncrementalTest, UnchangedFilesAreLinkedAndReported) {
  Save(1, "");
  Save(2, Path(1));
  Save(3, Path(2));
  EXPECT_THAT(ListNames(Path(3)), ElementsAre("checkpoint.h5", "manifest.json", "rank-00000-of-00002.h5",
                                              "rank-00000-of-00002.step-00000001.h5", "rank-00001-of-00002.h5",
                                              "rank-00001-of-00002.step-00000001.h5"));
  for (const int64_t step : {1, 2, 3}) ExpectHolds(step);
  EXPECT_LT(OwnBytes(3), 200000);
  EXPECT_THAT(notes_,
              ElementsAre("4800148 of 4801748 bytes are unchanged since step-00000001 and were not written again",
                          "4800148 of 4801748 bytes are unchanged since step-00000002 and were not written again"));
}

TEST_P(IncrementalTest, EachStepStaysWholeWhenTheOthersAreDeleted) {
  Save(1, "");
  Save(2, Path(1));
  Save(3, Path(2));
  ASSERT_OK(PruneCheckpoints(root_, 1));
  EXPECT_THAT(ListNames(root_), ElementsAre("step-00000003"));
  ExpectHolds(3);
  fs::copy(Path(3), root_ + "/copied");
  ExpectLoads(root_ + "/copied", 3);
}

TEST_P(IncrementalTest, ConversionSeesNoDifference) {
  Save(1, "");
  Save(2, Path(1));
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    ConvertOptions options;
    options.target = Hdf5Target{.type = type};
    options.force = true;
    ASSERT_OK(ConvertCheckpoint(Path(2), root_ + "/converted", options));
    ExpectLoads(root_ + "/converted", 2);
  }
}

TEST_P(IncrementalTest, AFileOfWhichLessThanHalfIsTheSameIsNotLinked) {
  Save(1, "");
  ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = State(group->rank(), 2);
    state.FindTensor(kFrozen.key)->shards[0].data.data_as<float>()[5] += 1;
    return SaveCheckpoint(state, root_, 2, *group, {.base = Path(1)}).status();
  }));
  EXPECT_THAT(ListNames(Path(2)),
              ElementsAre("checkpoint.h5", "manifest.json", "rank-00000-of-00002.h5", "rank-00001-of-00002.h5"));
}

TEST_P(IncrementalTest, ADamagedByteInALinkedFileIsFoundInEveryStep) {
  Save(1, "");
  Save(2, Path(1));
  const std::string file = JoinPath(Path(1), "rank-00000-of-00002.h5");
  std::string bytes = ReadFile(file);
  bytes[bytes.size() / 2] ^= 1;
  WriteAll(file, bytes);
  for (const int64_t step : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(Path(step)));
    EXPECT_THAT(report.problems, testing::Contains(HasSubstr("rank-00000-of-00002"))) << step;
  }
}

TEST_P(IncrementalTest, ParityAndRecordsMakeUpForLinkedFilesToo) {
  Save(1, "");
  Save(2, Path(1), /*parity=*/2);
  const std::string linked = JoinPath(Path(2), "rank-00000-of-00002.step-00000001.h5");
  for (const bool with_manifest : {true, false}) {
    fs::remove(linked);
    fs::remove(JoinPath(Path(2), "checkpoint.h5"));
    if (!with_manifest) fs::remove(JoinPath(Path(2), "manifest.json"));
    ASSERT_OK_AND_ASSIGN(const RepairReport report, RepairCheckpoint(Path(2)));
    EXPECT_THAT(report.problems, IsEmpty());
    ExpectHolds(2);
  }
}

TEST_P(IncrementalTest, AnotherNumberOfRanksWritesEverything) {
  Save(1, "");
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = ShardedState({kFrozen, kFrozenBias, kAdapter}, 1, 0);
    state.aliases.clear();
    return SaveCheckpoint(state, root_, 2, *group, {.base = Path(1)}).status();
  }));
  EXPECT_THAT(ListNames(Path(2)), ElementsAre("checkpoint.h5", "manifest.json", "rank-00000-of-00001.h5"));
}

TEST_P(IncrementalTest, WhereTheBaseIsGoneEverythingIsWrittenAndThatIsSaid) {
  Save(1, root_ + "/absent");
  ExpectHolds(1);
  EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("everything was written, since the checkpoint before cannot be read"),
                                        HasSubstr("/absent is not a checkpoint"))));
}

TEST_P(IncrementalTest, AFileOfTheBaseThatIsGoneIsWrittenAgain) {
  Save(1, "");
  fs::remove(JoinPath(Path(1), "rank-00001-of-00002.h5"));
  Save(2, Path(1));
  ExpectHolds(2);
  EXPECT_THAT(ListNames(Path(2)), ElementsAre("checkpoint.h5", "manifest.json", "rank-00000-of-00002.h5",
                                              "rank-00000-of-00002.step-00000001.h5", "rank-00001-of-00002.h5"));
}

// A step must not be damaged because the previous one is.
TEST_P(IncrementalTest, AFileOfTheBaseThatIsNoLongerWhatWasSavedIsWrittenAgain) {
  Save(1, "");
  const std::string file = JoinPath(Path(1), "rank-00001-of-00002.h5");
  const std::string good = ReadFile(file);
  const std::vector<std::function<void()>> losses = {
      [&] { WriteAll(file, good.substr(0, good.size() - 1)); },
      [&] { WriteAll(file, ReadFile(JoinPath(Path(1), "rank-00000-of-00002.h5"))); },
      [&] { ASSERT_EQ(mkfifo(file.c_str(), 0600), 0); },
      [&] { fs::create_directory(file); },
      [&] { fs::create_symlink("rank-00001-of-00002.h5", file); },
  };
  for (size_t i = 0; i < losses.size(); ++i) {
    fs::remove(file);
    losses[i]();
    const auto step = static_cast<int64_t>(2 + i);
    Save(step, Path(1));
    ExpectHolds(step);
    EXPECT_FALSE(fs::exists(JoinPath(Path(step), "rank-00001-of-00002.step-00000001.h5"))) << i;
    EXPECT_TRUE(fs::exists(JoinPath(Path(step), "rank-00000-of-00002.step-00000001.h5"))) << i;
  }
}

TEST_P(IncrementalTest, ItIsSaidWhyNothingIsLinked) {
  Save(1, "");
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = ShardedState({kFrozen}, 1, 0);
    state.aliases.clear();
    SaveOptions options;
    options.base = Path(1);
    options.note = [&](const std::string& sentence) { notes_.push_back(sentence); };
    FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, root_, 2, *group, options).status());
    options.type = StateDictType::kFull;
    FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, root_, 3, *group, options).status());
    state.FindTensor(kFrozen.key)->shards[0].data.data_as<float>()[5] += 1;
    options.type = StateDictType::kSharded;
    options.base = Path(2);
    return SaveCheckpoint(state, root_, 4, *group, options).status();
  }));
  const std::string nothing = "everything was written, since no file of step-00000001 could be linked: ";
  EXPECT_THAT(notes_, ElementsAre(nothing + "its kind, number of rank files or wrapping is another",
                                  nothing + "a full checkpoint is one file, which is written whole",
                                  HasSubstr("of each less than half is unchanged")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, IncrementalTest, testing::Values(StateDictType::kSharded, StateDictType::kLocal),
                         [](const testing::TestParamInfo<StateDictType>& info) {
                           return std::string(StateDictTypeName(info.param));
                         });

}  // namespace
}  // namespace fsdp
