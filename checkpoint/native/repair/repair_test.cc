// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/repair/repair.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kRanks = 4;

class RepairTest : public testing::TestWithParam<StateDictType> {
 protected:
  // Saves a checkpoint, and keeps the contents of its files.
  void Save(int parity) {
    const std::string root = NewTestDirectory();
    ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const StateDict state = StateOf(GetParam(), AwkwardTensors(), kRanks, group->rank());
      return SaveCheckpoint(state, root, 1, *group, {.parity = parity}).status();
    }));
    path_ = root + "/step-00000001";
    for (const std::string& name : ListNames(path_)) good_[name] = ReadFile(JoinPath(path_, name));
  }

  void Flip(const std::string& name, size_t at) {
    std::string bytes = good_.at(name);
    bytes[at] ^= 0x10;
    WriteAll(JoinPath(path_, name), bytes);
  }
  void Remove(const std::string& name) { fs::remove(JoinPath(path_, name)); }

  RepairReport Repair(const RepairOptions& options = {}) {
    const absl::StatusOr<RepairReport> report = RepairCheckpoint(path_, options);
    EXPECT_OK(report);
    return report.value_or(RepairReport());
  }

  // Expects that every file is as it was saved.
  void ExpectAsSaved() {
    EXPECT_THAT(ListNames(path_), testing::SizeIs(good_.size()));
    for (const auto& [name, bytes] : good_) {
      EXPECT_TRUE(ReadFile(JoinPath(path_, name)) == bytes) << name << " differs";
    }
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path_));
    EXPECT_THAT(report.problems, IsEmpty());
  }

  std::string path_;
  std::map<std::string, std::string> good_;
};

TEST_P(RepairTest, ParityFilesVerifyAndAreNamedInTheManifest) {
  Save(2);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path_));
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.files, kRanks + 2 + 2);
  EXPECT_THAT(good_.at("manifest.json"), HasSubstr("\"files\": [\"parity-00000-of-00002.bin\", "
                                                   "\"parity-00001-of-00002.bin\"]"));
  const RepairReport repaired = Repair();
  EXPECT_THAT(repaired.repaired, IsEmpty());
  EXPECT_THAT(repaired.problems, IsEmpty());
}

TEST_P(RepairTest, AnyTwoLostOrDamagedFilesAreRebuiltBitForBit) {
  Save(2);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : good_) {
    if (absl::StartsWith(name, "rank-") || absl::StartsWith(name, "parity-")) names.push_back(name);
  }
  ASSERT_EQ(names.size(), kRanks + 2u);
  for (size_t a = 0; a < names.size(); ++a) {
    const size_t b = (a + 1 + a % 3) % names.size();
    Remove(names[a]);
    Flip(names[b], good_.at(names[b]).size() / 2);
    const RepairReport report = Repair();
    EXPECT_THAT(report.repaired, Contains(AllOf(HasSubstr(names[a]), HasSubstr("is missing; made from parity"))));
    EXPECT_THAT(report.repaired, Contains(AllOf(HasSubstr(names[b]), HasSubstr("made from parity"))));
    ExpectAsSaved();
  }
}

TEST_P(RepairTest, MoreLossesThanParityAreReportedAndNothingIsChanged) {
  Save(1);
  Remove(RankFileName(0, kRanks));
  Flip(RankFileName(2, kRanks), 5000);
  const auto before = ListNames(path_);
  const RepairReport report = Repair();
  EXPECT_THAT(report.repaired, IsEmpty());
  EXPECT_THAT(report.problems, ElementsAre(AllOf(HasSubstr(RankFileName(0, kRanks)),
                                                 HasSubstr("2 files are lost or damaged, and the 1 parity files make "
                                                           "up for 1")),
                                           HasSubstr(RankFileName(2, kRanks))));
  EXPECT_EQ(ListNames(path_), before);
}

TEST_P(RepairTest, WithoutParityALostRankFileIsLost) {
  Save(0);
  Remove(RankFileName(3, kRanks));
  EXPECT_THAT(Repair().problems,
              ElementsAre(AllOf(HasSubstr(RankFileName(3, kRanks)), HasSubstr("there is no parity to make it from"))));
}

TEST_P(RepairTest, TheIndexAndTheManifestAreRebuiltFromTheRecords) {
  Save(0);
  const std::vector<std::vector<std::string>> losses = {
      {"checkpoint.h5"}, {"manifest.json"}, {"checkpoint.h5", "manifest.json"}};
  for (const std::vector<std::string>& lost : losses) {
    for (const std::string& name : lost) Remove(name);
    const RepairReport report = Repair();
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_EQ(report.repaired.size(), lost.size());
    for (const std::string& name : lost) {
      EXPECT_THAT(report.repaired,
                  Contains(AllOf(HasSubstr(name), HasSubstr("made from the records of the rank files"))));
    }
    ExpectAsSaved();
  }
  for (const char* name : {"checkpoint.h5", "manifest.json"}) {
    Flip(name, good_.at(name).size() / 2);
    EXPECT_THAT(Repair().problems, IsEmpty());
    ExpectAsSaved();
  }
}

TEST_P(RepairTest, NoManifestIsMadeFromADamagedByte) {
  Save(0);
  Remove("manifest.json");
  const std::string name = RankFileName(1, kRanks);
  const std::string& bytes = good_.at(name);
  for (const size_t at : {size_t{8}, size_t{70000}, bytes.size() / 2, bytes.size() - 1}) {
    Flip(name, at);
    const RepairReport report = Repair();
    EXPECT_THAT(report.problems, ElementsAre(HasSubstr(name))) << at;
    EXPECT_FALSE(fs::exists(path_ + "/manifest.json"));
  }
}

TEST_P(RepairTest, WithoutManifestParityStillMakesUpForARankFile) {
  Save(2);
  Remove("manifest.json");
  Remove("checkpoint.h5");
  Remove(RankFileName(0, kRanks));
  Flip(RankFileName(3, kRanks), 9000);
  const RepairReport report = Repair();
  EXPECT_THAT(report.problems, IsEmpty());
  ExpectAsSaved();
}

// Regression: parity file 1 of 2 has other contents than parity file 0 of 1; a repair confused them.
TEST_P(RepairTest, WithoutManifestAParityFileIsTheOneThatItsNameTells) {
  Save(2);
  for (const bool is_rank_lost : {true, false}) {
    Remove("manifest.json");
    Remove("parity-00000-of-00002.bin");
    if (is_rank_lost) Remove(RankFileName(2, kRanks));
    const RepairReport report = Repair();
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(report.repaired, Contains("parity-00000-of-00002.bin is missing; made from the rank files"));
    if (is_rank_lost) {
      EXPECT_THAT(report.repaired,
                  Contains(RankFileName(2, kRanks) + " is missing; made from parity, with parity-00001-of-00002.bin"));
    }
    ExpectAsSaved();
  }
}

// Only the rank files still record that parity existed.
TEST_P(RepairTest, WithoutManifestAllLostParityFilesAreRebuilt) {
  Save(2);
  for (const char* name : {"manifest.json", "parity-00000-of-00002.bin", "parity-00001-of-00002.bin"}) Remove(name);
  RepairReport report = Repair();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.repaired, Contains("parity-00000-of-00002.bin is missing; made from the rank files"));
  EXPECT_THAT(report.repaired, Contains("parity-00001-of-00002.bin is missing; made from the rank files"));
  ExpectAsSaved();
  for (const char* name : {"manifest.json", "parity-00000-of-00002.bin", "parity-00001-of-00002.bin"}) Remove(name);
  Remove(RankFileName(1, kRanks));
  report = Repair();
  EXPECT_THAT(report.repaired, IsEmpty());
  EXPECT_THAT(report.problems,
              ElementsAre(AllOf(HasSubstr(RankFileName(1, kRanks)),
                                HasSubstr("3 files are lost or damaged, and the 2 parity files make "
                                          "up for 2")),
                          "parity-00000-of-00002.bin is missing", "parity-00001-of-00002.bin is missing"));
}

// Regression: such a file made repair add seven parity files to a save without parity.
TEST_P(RepairTest, WithoutManifestAFileThatIsOnlyNamedAsParityIsNone) {
  Save(0);
  Remove("manifest.json");
  WriteAll(JoinPath(path_, "parity-00000-of-00007.bin"), "");
  const RepairReport report = Repair();
  EXPECT_THAT(report.repaired, IsEmpty());
  EXPECT_THAT(report.problems, ElementsAre("parity-00000-of-00007.bin: the records of the rank files name no such "
                                           "file; move it out of the checkpoint"));
  fs::remove(JoinPath(path_, "parity-00000-of-00007.bin"));
  EXPECT_THAT(Repair().problems, IsEmpty());
  ExpectAsSaved();
}

TEST_P(RepairTest, DamagedParityWithoutManifestIsNoticed) {
  Save(1);
  Remove("manifest.json");
  Remove(RankFileName(1, kRanks));
  Flip("parity-00000-of-00001.bin", good_.at("parity-00000-of-00001.bin").size() / 3);
  EXPECT_THAT(Repair().problems,
              ElementsAre(AllOf(HasSubstr(RankFileName(1, kRanks)), HasSubstr("do not match their records"))));
  EXPECT_FALSE(fs::exists(path_ + "/manifest.json"));
}

// Without the manifest, damage in a parity file cannot be detected, so choices of them are tried.
TEST_P(RepairTest, WithoutManifestADamagedParityFileIsFoundByTryingTheOthers) {
  Save(3);
  const std::vector<std::string> parity = {"parity-00000-of-00003.bin", "parity-00001-of-00003.bin",
                                           "parity-00002-of-00003.bin"};
  for (int whole = 0; whole < 3; ++whole) {
    Remove("manifest.json");
    Remove(RankFileName(whole, kRanks));
    for (int i = 0; i < 3; ++i) {
      if (i == whole) continue;
      const std::string& bytes = good_.at(parity[i]);
      i == 2 ? WriteAll(JoinPath(path_, parity[i]), bytes.substr(0, 100)) : Flip(parity[i], bytes.size() / 2);
    }
    const RepairReport report = Repair();
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(report.repaired, Contains(absl::StrCat(RankFileName(whole, kRanks),
                                                       " is missing; made from parity, with ", parity[whole])));
    for (int i = 0; i < 3; ++i) {
      const auto names_it = Contains(AllOf(testing::StartsWith(parity[i]), HasSubstr("made from the rank files")));
      EXPECT_EQ(testing::Value(report.repaired, names_it), i != whole) << parity[i];
    }
    ExpectAsSaved();
  }
}

TEST_P(RepairTest, WithoutManifestAFileOfAnotherSaveIsRebuiltFromParity) {
  Save(1);
  const std::string foreign = good_.at(RankFileName(2, kRanks));
  Save(1);
  Remove("manifest.json");
  WriteAll(JoinPath(path_, RankFileName(2, kRanks)), foreign);
  EXPECT_THAT(Repair().repaired, Contains(AllOf(HasSubstr("is of another save than"), HasSubstr("made from parity"))));
  ExpectAsSaved();
}

TEST_P(RepairTest, WithoutManifestAndAnyWholeRankFileParityIsEnough) {
  Save(kRanks);
  Remove("manifest.json");
  Remove("checkpoint.h5");
  for (int rank = 0; rank < kRanks; ++rank) {
    rank == 1 ? Flip(RankFileName(rank, kRanks), 5000) : Remove(RankFileName(rank, kRanks));
  }
  EXPECT_THAT(Repair().problems, IsEmpty());
  ExpectAsSaved();
}

// A repair does not block on a FIFO, and does not read a device.
TEST_P(RepairTest, AnythingElseInPlaceOfAFileCountsAsALostFile) {
  Save(2);
  const std::vector<std::vector<std::string>> losses = {
      {RankFileName(2, kRanks)},
      {"checkpoint.h5"},
      {"manifest.json"},
      {"parity-00000-of-00002.bin"},
      {RankFileName(0, kRanks), "parity-00001-of-00002.bin", "checkpoint.h5", "manifest.json"}};
  const std::vector<std::function<void(const std::string&)>> others = {
      [](const std::string& file) { ASSERT_EQ(mkfifo(file.c_str(), 0600), 0); },
      [](const std::string& file) { fs::create_symlink(fs::path(file).filename(), file); },
      [](const std::string& file) { fs::create_symlink("/dev/zero", file); },
      [](const std::string& file) { fs::create_symlink("nothing", file); },
  };
  for (const std::vector<std::string>& lost : losses) {
    for (const auto& put : others) {
      for (const std::string& name : lost) {
        Remove(name);
        put(JoinPath(path_, name));
      }
      const RepairReport report = Repair();
      EXPECT_THAT(report.problems, IsEmpty());
      for (const std::string& name : lost) EXPECT_THAT(report.repaired, Contains(HasSubstr(name)));
      ExpectAsSaved();
      for (const std::string& name : lost) EXPECT_FALSE(fs::is_symlink(JoinPath(path_, name)));
    }
  }
}

TEST_P(RepairTest, ADirectoryInPlaceOfAFileIsRenamedWithItsContents) {
  Save(1);
  for (const std::string& name :
       {RankFileName(2, kRanks), std::string("checkpoint.h5"), std::string("manifest.json")}) {
    Remove(name);
    fs::create_directory(JoinPath(path_, name));
    WriteAll(JoinPath(path_, name) + "/notes", "mine");
    EXPECT_THAT(Repair({.dry_run = true}).repaired,
                ElementsAre(HasSubstr(name + " is not a regular file, but a directory")));
    const RepairReport report = Repair();
    EXPECT_THAT(report.problems, IsEmpty());
    const std::vector<std::string> names = ListNames(path_);
    const auto displaced = std::find_if(names.begin(), names.end(), [&](const std::string& other) {
      return absl::StartsWith(other, absl::StrCat(".", name, ".aside-"));
    });
    ASSERT_NE(displaced, names.end());
    EXPECT_THAT(report.repaired,
                Contains(absl::StrCat("the directory ", name, " was in the way; it is now ", *displaced)));
    EXPECT_EQ(ReadFile(JoinPath(path_, *displaced) + "/notes"), "mine");
    ASSERT_OK_AND_ASSIGN(const VerifyReport verified, VerifyCheckpoint(path_));
    EXPECT_THAT(verified.problems, IsEmpty());
    fs::remove_all(JoinPath(path_, *displaced));
    ExpectAsSaved();
  }
}

TEST_P(RepairTest, ADirectoryThatNoRebuiltFileReplacesStays) {
  Save(1);
  Remove(RankFileName(2, kRanks));
  Remove(RankFileName(0, kRanks));
  fs::create_directory(JoinPath(path_, RankFileName(2, kRanks)));
  EXPECT_THAT(Repair().problems, Contains(AllOf(HasSubstr(RankFileName(2, kRanks)), HasSubstr("but a directory"),
                                                HasSubstr("2 files are lost or damaged"))));
  EXPECT_TRUE(fs::is_directory(JoinPath(path_, RankFileName(2, kRanks))));
}

TEST_P(RepairTest, ADirectoryThatAnotherProcessChangesIsNotRepaired) {
  Save(1);
  Remove(RankFileName(2, kRanks));
  {
    ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(path_));
    EXPECT_THAT(RepairCheckpoint(path_), StatusIs(absl::StatusCode::kUnavailable,
                                                  HasSubstr(absl::StrCat("is being changed by process ", getpid()))));
    EXPECT_THAT(Repair({.dry_run = true}).repaired, ElementsAre(HasSubstr("made from parity")));
  }
  EXPECT_THAT(Repair().problems, IsEmpty());
  ExpectAsSaved();
}

TEST_P(RepairTest, ADryRunReportsTheSameAndWritesNothing) {
  Save(1);
  Remove("checkpoint.h5");
  Flip(RankFileName(2, kRanks), 4096);
  const auto before = ListNames(path_);
  const RepairReport dry = Repair({.dry_run = true});
  EXPECT_EQ(ListNames(path_), before);
  EXPECT_THAT(dry.problems, IsEmpty());
  EXPECT_EQ(Repair().repaired, dry.repaired);
  ExpectAsSaved();
}

TEST_P(RepairTest, FilesOfTwoSavesAreNotMixed) {
  Save(0);
  const std::string other = path_;
  const std::map<std::string, std::string> other_files = good_;
  Save(0);
  Remove("manifest.json");
  WriteAll(JoinPath(path_, RankFileName(2, kRanks)), other_files.at(RankFileName(2, kRanks)));
  EXPECT_THAT(Repair().problems, ElementsAre(HasSubstr("is of another save than")));
}

// If all rank files agree with each other but not with the manifest, the manifest was swapped.
TEST_P(RepairTest, AManifestOfAnotherSaveIsRebuilt) {
  Save(1);
  const std::string foreign = good_.at("manifest.json");
  Save(1);
  for (const bool is_rank_lost : {false, true}) {
    WriteAll(JoinPath(path_, "manifest.json"), foreign);
    if (is_rank_lost) Remove(RankFileName(0, kRanks));
    EXPECT_THAT(Repair().repaired, Contains(AllOf(HasSubstr("manifest.json is of another save than the rank files"),
                                                  HasSubstr("made from the records of the rank files"))));
    ExpectAsSaved();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RepairTest, testing::Values(StateDictType::kSharded, StateDictType::kLocal),
                         [](const testing::TestParamInfo<StateDictType>& info) {
                           return std::string(StateDictTypeName(info.param));
                         });

TEST(RepairFullTest, AFullCheckpointCannotBeRepaired) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(FullState(AwkwardTensors()), root, 1, *group).status();
  }));
  const std::string path = root + "/step-00000001";
  std::string bytes = ReadFile(path + "/checkpoint.h5");
  bytes[bytes.size() / 2] ^= 1;
  WriteAll(path + "/checkpoint.h5", bytes);
  ASSERT_OK_AND_ASSIGN(const RepairReport report, RepairCheckpoint(path));
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("a full checkpoint keeps its bytes there and nowhere else")));
}

TEST(RepairFullTest, ADirectoryOfCheckpointsIsNoCheckpoint) {
  const std::string root = NewTestDirectory();
  for (const char* name : {"/step-00000001", "/step-00000002"}) fs::create_directory(root + name);
  EXPECT_THAT(RepairCheckpoint(root),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("repair one step, such as " + root + "/step-00000002")));
}

TEST(RepairFullTest, ADirectoryWithoutACheckpointIsRefused) {
  const std::string root = NewTestDirectory();
  EXPECT_THAT(RepairCheckpoint(root), StatusIs(absl::StatusCode::kNotFound, HasSubstr("is not a checkpoint")));
  const std::string staged = root + "/.step-00000001.tmp-0123456789abcdef";
  fs::create_directory(staged);
  EXPECT_THAT(RepairCheckpoint(staged), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("never committed")));
}

}  // namespace
}  // namespace fsdp
