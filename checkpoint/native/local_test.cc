// SPDX-License-Identifier: Apache-2.0
//
// LOCAL: flat shards written as they are in memory, without communication, and read like any other kind.
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/group/counting_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::IsEmpty;

absl::Status SaveLocal(const std::string& root, int world_size,
                       const std::vector<TestTensor>& tensors = AwkwardTensors()) {
  return RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(LocalState(tensors, world_size, group->rank()), root, 1, *group).status();
  });
}

void ExpectLoads(const std::string& path, const std::vector<TestTensor>& tensors = AwkwardTensors()) {
  for (const int world_size : {1, 2, 3}) {
    for (int rank = 0; rank < world_size; ++rank) {
      StateDict wanted = WantedState(tensors, world_size, rank);
      EXPECT_OK(LoadCheckpoint(path, wanted));
      EXPECT_OK(CheckState(tensors, wanted));
    }
  }
}

TEST(LocalTest, LoadsAtAnyWorldSizeAndVerifies) {
  for (const int saved : {1, 2, 3, 7}) {
    const std::string root = NewTestDirectory();
    ASSERT_OK(SaveLocal(root, saved));
    ExpectLoads(root + "/step-00000001");
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(root + "/step-00000001"));
    EXPECT_THAT(report.problems, IsEmpty());
  }
}

TEST(LocalTest, TakesNoCollectivesButTheGathersOfTheCommit) {
  const auto count = [](int world_size, const std::vector<TestTensor>& tensors) {
    const std::string root = NewTestDirectory();
    std::vector<std::pair<int, int64_t>> counts(world_size);
    EXPECT_OK(RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
      CountingProcessGroup counting(group);
      const StateDict state = LocalState(tensors, world_size, group->rank());
      const absl::Status saved = SaveCheckpoint(state, root, 1, counting).status();
      EXPECT_EQ(counting.collectives(), 0);
      EXPECT_LT(counting.gathered_bytes(), 2048) << "payload is never gathered";
      counts[group->rank()] = {counting.control_calls(), counting.gathered_bytes()};
      return saved;
    }));
    return counts[0].first;
  };
  const int of_many = count(2, AwkwardTensors());
  EXPECT_EQ(count(2, {AwkwardTensors()[0]}), of_many);
  EXPECT_EQ(count(5, AwkwardTensors()), of_many);
  EXPECT_EQ(of_many, 7);
}

TEST(LocalTest, EachUnitIsOneLongDatasetPerKindOfValueAndDtype) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(SaveLocal(root, 2));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), root + "/step-00000001"));
  EXPECT_EQ(manifest.save.type, StateDictType::kLocal);
  ASSERT_EQ(manifest.units.size(), FlatUnits().size());
  // The root unit: 12352 elements in two shards of 6176; weight, padding, and the ten elements of the second.
  const auto place = [&](const char* fqn, size_t index) {
    for (const StoredTensor& tensor : manifest.tensors) {
      if (tensor.key == StateKey::Model(fqn)) return tensor.intervals[index];
    }
    return StoredInterval();
  };
  const StoredInterval first = place("wte.weight", 0);
  const StoredInterval second = place("wte.weight", 1);
  const StoredInterval last = place("100%/of.\xC3\xA4", 0);
  EXPECT_EQ(first.interval, (Interval{0, 6176}));
  EXPECT_EQ(second.interval, (Interval{6176, 12336}));
  EXPECT_EQ(last.interval, (Interval{0, 10}));
  EXPECT_EQ(last.file, second.file);
  EXPECT_EQ(last.offset - second.offset, 4 * (12340 - 6176));
  const StoredFile& file = manifest.files[second.file];
  EXPECT_EQ(ExtentAt(file, second.offset), ExtentAt(file, last.offset));
  EXPECT_EQ(ExtentAt(file, second.offset)->range.nbytes, 4 * (12350 - 6176));
  // Padding is zero, with any bytes in memory.
  const std::string bytes = ReadFile(root + "/step-00000001/" + file.name);
  EXPECT_EQ(bytes.substr(second.offset + 4 * (12336 - 6176), 16), std::string(16, '\0'));
}

TEST(LocalTest, ConvertsToAndFromEveryKind) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(SaveLocal(root, 3));
  std::string source = root + "/step-00000001";
  const std::vector<std::pair<StateDictType, int>> kinds = {
      {StateDictType::kSharded, 2}, {StateDictType::kLocal, 4}, {StateDictType::kFull, 0}, {StateDictType::kLocal, 1}};
  for (size_t i = 0; i < kinds.size(); ++i) {
    ConvertOptions options;
    Hdf5Target target = {.type = kinds[i].first};
    if (kinds[i].second != 0) target.world_size = kinds[i].second;
    options.target = target;
    const std::string destination = absl::StrCat(root, "/converted-", i);
    ASSERT_OK(ConvertCheckpoint(source, destination, options));
    ExpectLoads(destination);
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), destination));
    ASSERT_EQ(manifest.units.size(), FlatUnits().size());
    EXPECT_EQ(manifest.units[0].unsharded_numel, FlatUnits()[0].unsharded_numel);
    source = destination;
  }
}

TEST(LocalTest, AStateThatWasNeverFlatCountsAsOneUnit) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = FullState(tensors);
    state.units.clear();
    return SaveCheckpoint(state, root, 1, *group).status();
  }));
  ConvertOptions options;
  options.target = Hdf5Target{.type = StateDictType::kLocal, .world_size = 2};
  ASSERT_OK(ConvertCheckpoint(root + "/step-00000001", root + "/local", options));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), root + "/local"));
  ASSERT_EQ(manifest.units.size(), 1);
  ExpectLoads(root + "/local");
}

}  // namespace
}  // namespace fsdp
