// SPDX-License-Identifier: Apache-2.0
//
// Repair with a crash, or an error, at each of its storage operations in turn: intact files stay unchanged, every other
// file is as damaged as before or as it was saved, and a second repair restores everything, byte for byte.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

constexpr int kRanks = 3;

// The damage to a file: it is missing, a byte of it is flipped, or a directory has its name.
enum class Left : uint8_t { kNothing, kDamaged, kDirectory };

constexpr char kADirectory[] = "a directory";

struct Scenario {
  std::string name;
  std::map<std::string, Left> losses;
  int parity = 0;
  StateDictType type = StateDictType::kSharded;
  bool is_incremental = false;
};

const std::vector<TestTensor>& Tensors() {
  static const auto* const tensors =
      new std::vector<TestTensor>{{StateKey::Model("wte.weight"), DType::kFloat32, {7, 3}},
                                  {StateKey::Model("frozen"), DType::kFloat32, {120000}},
                                  {StateKey::OptimState("wte.weight", "exp_avg"), DType::kBFloat16, {7, 3}}};
  return *tensors;
}

StateDict State(StateDictType type, int rank) {
  const std::vector<FlatUnitLayout> units = {{"", {{"wte.weight", 0, 21}, {"frozen", 21, 120000}}, 120021}};
  return type == StateDictType::kLocal ? LocalState(Tensors(), kRanks, rank, units)
                                       : ShardedState(Tensors(), kRanks, rank);
}

// The contents of files by name; hidden names too.
using Contents = std::map<std::string, std::string>;

Contents ContentsOf(const std::string& directory) {
  Contents contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    contents[entry.path().filename()] = entry.is_directory() ? kADirectory : ReadFile(entry.path());
  }
  return contents;
}

// True for names that a repair gives to a directory with the name of a file.
bool IsAsideName(const std::string& name) { return name[0] == '.' && absl::StrContains(name, ".aside-"); }

class RepairCrashTest : public testing::TestWithParam<Scenario> {
 protected:
  RepairCrashTest() {
    const std::string root = NewTestDirectory();
    for (int64_t step = 1; step <= (GetParam().is_incremental ? 2 : 1); ++step) {
      SaveOptions options;
      if (step > 1) options.base = path_;
      if (step > 1 || !GetParam().is_incremental) options.parity = GetParam().parity;
      EXPECT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
        return SaveCheckpoint(State(GetParam().type, group->rank()), root, step, *group, options).status();
      }));
      path_ = JoinPath(root, StepName(step));
    }
    good_ = ContentsOf(path_);
    damaged_ = good_;
    for (const auto& [name, left] : GetParam().losses) {
      EXPECT_EQ(good_.count(name), 1u) << name;
      if (left == Left::kNothing) damaged_.erase(name);
      if (left == Left::kDamaged) damaged_[name][good_[name].size() / 2] ^= 1;
      if (left == Left::kDirectory) damaged_[name] = kADirectory;
    }
  }

  void Prepare() {
    fs::remove_all(path_);
    fs::create_directory(path_);
    for (const auto& [name, bytes] : damaged_) {
      const std::string file = JoinPath(path_, name);
      bytes == kADirectory ? (void)fs::create_directory(file) : WriteAll(file, bytes);
    }
  }

  absl::StatusOr<RepairReport> Repair(FileSystem& files) {
    RepairOptions options;
    options.io_threads = 1;
    options.file_system = &files;
    return RepairCheckpoint(path_, options);
  }

  int64_t CountOperations() {
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    EXPECT_OK(Repair(files));
    ExpectGood();
    return files.operations();
  }

  void ExpectFilesAsSaved() {
    const Contents found = ContentsOf(path_);
    for (const auto& [name, bytes] : good_) {
      EXPECT_TRUE(found.count(name) == 1 && found.at(name) == bytes) << name << " is not as it was saved";
    }
  }

  // Expects exactly the saved files and contents.
  void ExpectGood() {
    ExpectFilesAsSaved();
    for (const std::string& name : ListNames(path_)) {
      EXPECT_TRUE(good_.count(name) == 1 || IsAsideName(name)) << name << " is left";
    }
  }

  // Expects that every file is as before the repair or as it was saved; a directory may have been renamed.
  void ExpectNothingWorse(bool may_leave) {
    const Contents found = ContentsOf(path_);
    for (const auto& [name, bytes] : good_) {
      const auto now = found.find(name);
      const auto before = damaged_.find(name);
      const bool is_there = now != found.end();
      const bool is_as_before = is_there == (before != damaged_.end()) && (!is_there || now->second == before->second);
      const bool has_room = !is_there && before != damaged_.end() && before->second == kADirectory;
      EXPECT_TRUE(is_as_before || has_room || (is_there && now->second == bytes))
          << name << " is neither old nor repaired";
    }
    for (const auto& [name, bytes] : found) {
      EXPECT_TRUE(good_.count(name) == 1 || IsAsideName(name) || (may_leave && name[0] == '.')) << name << " is left";
    }
  }

  std::string path_;
  Contents good_;
  Contents damaged_;
  const std::string graveyard_ = NewTestDirectory();
};

TEST_P(RepairCrashTest, AFaultAtAnyOperationCostsNothingAndRepairingAgainEndsIt) {
  const int64_t operations = CountOperations();
  ASSERT_GT(operations, 4);
  std::printf("repair, %s: %lld operations\n", GetParam().name.c_str(), static_cast<long long>(operations));
  for (const StorageFault& fault : FaultSeries(operations)) {
    SCOPED_TRACE(fault.ToString());
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    fault.Arm(files);
    const absl::StatusOr<RepairReport> report = Repair(files);
    fault.Strike(files);
    // If everything is repaired, the fault hit the cleaning up.
    ExpectNothingWorse(/*may_leave=*/!fault.can_clean_up() || report.ok());
    if (report.ok() && report->is_whole()) ExpectFilesAsSaved();
    if (!fault.is_crash() && !report.ok()) {
      EXPECT_THAT(std::string(report.status().message()), testing::HasSubstr("test: "));
    }
    FaultFileSystem sound(PosixFileSystem(), graveyard_);
    const absl::StatusOr<RepairReport> again = Repair(sound);
    ASSERT_OK(again);
    EXPECT_THAT(again->problems, IsEmpty());
    ExpectGood();
  }
}

std::vector<Scenario> Scenarios() {
  constexpr char kRank1[] = "rank-00001-of-00003.h5";
  constexpr char kParity0[] = "parity-00000-of-00002.bin";
  constexpr char kIndex[] = "checkpoint.h5";
  constexpr char kManifest[] = "manifest.json";
  const std::map<std::string, Left> everything = {
      {kRank1, Left::kNothing}, {kParity0, Left::kNothing}, {kIndex, Left::kNothing}, {kManifest, Left::kNothing}};
  return {
      {"LostRankFile", {{kRank1, Left::kNothing}}, 1},
      {"DamagedRankFile", {{kRank1, Left::kDamaged}}, 1},
      {"LostParityFile", {{kParity0, Left::kNothing}}, 2},
      {"LostIndex", {{kIndex, Left::kNothing}}},
      {"DamagedIndex", {{kIndex, Left::kDamaged}}},
      {"DirectoriesInPlaceOfFiles",
       {{kRank1, Left::kDirectory}, {kIndex, Left::kDirectory}, {kManifest, Left::kDirectory}},
       1},
      {"LostManifest", {{kManifest, Left::kNothing}}, 1},
      {"DamagedManifest", {{kManifest, Left::kDamaged}}},
      {"LostEverythingButTheOtherRankFiles", everything, 2},
      {"LostEverythingLocal", everything, 2, StateDictType::kLocal},
      {"LostLinkedFile",
       {{"rank-00001-of-00003.step-00000001.h5", Left::kNothing}, {kManifest, Left::kDamaged}},
       1,
       StateDictType::kSharded,
       true},
      {"LostRankFileWithLinks",
       {{kRank1, Left::kNothing}, {kManifest, Left::kNothing}},
       1,
       StateDictType::kSharded,
       true},
      {"LostManifestAndDamagedParity",
       {{kRank1, Left::kNothing}, {kParity0, Left::kDamaged}, {kManifest, Left::kNothing}},
       2},
  };
}

INSTANTIATE_TEST_SUITE_P(Losses, RepairCrashTest, testing::ValuesIn(Scenarios()),
                         [](const testing::TestParamInfo<Scenario>& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
