// SPDX-License-Identifier: Apache-2.0
//
// Properties of verify and repair that hold for any damage, tested with random damage: deleted, cut, overwritten,
// swapped, renamed, foreign and additional files, in checkpoints of every kind. A failure names the case, which is the
// seed of its random numbers.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::IsEmpty;

constexpr int kRanks = 3;
constexpr int kCases = 30;  // of each kind; thousands were tried

struct Kind {
  const char* name;
  StateDictType type;
  int parity = 0;
  bool incremental = false;  // with files of an earlier save
};

// The bytes of regular files by name; for other entries a description that no file contains.
using Files = std::map<std::string, std::string>;

Files FilesIn(const std::string& directory) {
  Files files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    std::string& bytes = files[entry.path().filename()];
    if (entry.is_symlink()) {
      bytes = absl::StrCat("a link to ", fs::read_symlink(entry.path()).string());
    } else {
      bytes = entry.is_directory() ? "a directory" : ReadFile(entry.path());
    }
  }
  return files;
}

const std::vector<TestTensor>& Tensors() {
  static const auto* tensors = new std::vector<TestTensor>{
      {StateKey::Model("frozen.weight"), DType::kFloat32, {600, 100}},
      {StateKey::Model("adapter.weight"), DType::kFloat32, {40, 10}},
      {StateKey::OptimState("adapter.weight", "exp_avg"), DType::kBFloat16, {40, 10}},
      {StateKey::Model("scalar"), DType::kFloat64, {}},
  };
  return *tensors;
}

// The state of rank `rank`; `value` is one element of it on each rank.
StateDict State(StateDictType type, int rank, float value) {
  const std::vector<FlatUnitLayout> units = {{"frozen", {{"frozen.weight", 0, 60000}}, 60000},
                                             {"adapter", {{"adapter.weight", 0, 400}}, 400}};
  StateDict state = type == StateDictType::kLocal  ? LocalState(Tensors(), kRanks, rank, units)
                    : type == StateDictType::kFull ? FullState(Tensors())
                                                   : ShardedState(Tensors(), kRanks, rank);
  state.aliases.clear();
  for (const ShardedTensor::Shard& shard : state.FindTensor(StateKey::Model("adapter.weight"))->shards) {
    if (shard.data.numel() > 0) shard.data.data_as<float>()[0] = value;
  }
  return state;
}

// The files of a checkpoint of `kind`, as made by a separate save.
Files SaveNew(const Kind& kind, float value) {
  const std::string root = NewTestDirectory();
  for (int64_t step = kind.incremental ? 1 : 2; step <= 2; ++step) {
    EXPECT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
      SaveOptions options;
      options.parity = kind.parity;
      if (step == 2 && kind.incremental) options.base = root + "/step-00000001";
      return SaveCheckpoint(State(kind.type, group->rank(), value + step), root, step, *group, options).status();
    }));
  }
  return FilesIn(root + "/step-00000002");
}

class RandomDamageTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    good_ = SaveNew(GetParam(), 0);
    for (const auto& [name, bytes] : good_) names_.push_back(name);
    if (GetParam().incremental) {
      EXPECT_THAT(names_, testing::Contains(testing::HasSubstr(".step-00000001.h5")));
    }
  }

  // Begins case `number` with the checkpoint as it was saved.
  void Begin(int number) {
    random_.seed(number);
    fs::remove_all(path_);
    fs::create_directory(path_);
    for (const auto& [name, bytes] : good_) WriteAll(JoinPath(path_, name), bytes);
  }

  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  const std::string& AnyName() { return names_[Below(names_.size())]; }

  // Overwrites some bytes of `bytes` and returns their range.
  ByteRange Overwrite(std::string& bytes, size_t at) {
    const size_t most = std::min<size_t>(bytes.size() - at, size_t{1} << Below(15));
    const size_t count = 1 + Below(most);
    const bool zeros = Below(2) == 0;
    for (size_t i = at; i < at + count; ++i) bytes[i] = zeros ? '\0' : static_cast<char>(Below(256));
    return {static_cast<int64_t>(at), static_cast<int64_t>(count)};
  }

  const std::string path_ = NewTestDirectory() + "/step-00000002";
  Files good_;
  std::vector<std::string> names_;  // of good_
  std::mt19937 random_;
};

// --- The reported range contains the damage -------------------------------------------------------------------------

class DamagedRangeTest : public RandomDamageTest {
 protected:
  // Damages the bytes of a file: mostly near the borders of extents, between two digests.
  std::string Damaged(const std::string& name, const Manifest& manifest) {
    std::string bytes = good_.at(name);
    switch (Below(6)) {
      case 0:
        bytes.resize(Below(bytes.size()));
        return bytes;
      case 1:
        return absl::StrCat(bytes, std::string(1 + Below(5000), 'x'));
      default:
        break;
    }
    std::vector<size_t> borders = {0, Below(bytes.size())};
    for (const StoredFile& stored : manifest.files) {
      if (stored.name != name) continue;
      for (const StoredExtent& extent : stored.extents) {
        borders.push_back(extent.range.offset);
        borders.push_back(extent.range.end());
      }
    }
    const size_t border = borders[Below(borders.size())];
    const size_t before = Below(2) == 0 ? 0 : Below(600);
    Overwrite(bytes, std::min(border - std::min(border, before), bytes.size() - 1));
    return bytes;
  }

  // Expects that each byte of file `name` that differs from the saved one is in a range that `report` names for this
  // file, and that no other file is named.
  static void ExpectNamed(const std::string& name, const std::string& good, const std::string& bad,
                          const VerifyReport& report) {
    const auto differs = [&](size_t at) { return at >= good.size() || at >= bad.size() || good[at] != bad[at]; };
    // Nothing records the size of the manifest, so the bytes that it has lost have no known end.
    const size_t size = name == "manifest.json" ? bad.size() : std::max(good.size(), bad.size());
    for (size_t at = 0; at < size; ++at) {
      if (!differs(at)) continue;
      const bool is_named = std::any_of(report.damage.begin(), report.damage.end(), [&](const auto& damage) {
        const auto offset = static_cast<int64_t>(at);
        return damage.file == name && damage.range.offset <= offset && offset < damage.range.end();
      });
      ASSERT_TRUE(is_named) << name << " is damaged at byte " << at << ", and reported is "
                            << testing::PrintToString(report.problems);
    }
    for (const VerifyReport::Damage& damage : report.damage) EXPECT_EQ(damage.file, name);
    EXPECT_EQ(report.damage.empty(), good == bad);
  }
};

TEST_P(DamagedRangeTest, EveryDamagedByteLiesInAReportedRangeOfItsFile) {
  Begin(0);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), path_));
  for (int number = 0; number < 3 * kCases; ++number) {
    SCOPED_TRACE(absl::StrCat("case ", number));
    random_.seed(number);
    const std::string name = AnyName();
    const std::string bad = Damaged(name, manifest);
    WriteAll(JoinPath(path_, name), bad);
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path_));
    ExpectNamed(name, good_.at(name), bad, report);
    WriteAll(JoinPath(path_, name), good_.at(name));
  }
}

// --- repair and verify agree ----------------------------------------------------------------------------------------

class RepairAgreesTest : public RandomDamageTest {
 protected:
  void SetUp() override {
    RandomDamageTest::SetUp();
    foreign_ = SaveNew(GetParam(), 100);
  }

  // One random damage to the files in path_.
  void DamageOnce() {
    const std::string file = JoinPath(path_, AnyName());
    if (!fs::is_regular_file(fs::symlink_status(file))) return;  // earlier damage removed it
    std::string bytes = ReadFile(file);
    switch (Below(10)) {
      case 0:
        fs::remove(file);
        return;
      case 1:
        if (bytes.empty()) return;
        bytes.resize(Below(2) * Below(bytes.size()));  // half of them empty
        return WriteAll(file, bytes);
      case 2:
        if (bytes.empty()) return;
        Overwrite(bytes, Below(bytes.size()));
        return WriteAll(file, bytes);
      case 3:
        return WriteAll(JoinPath(path_, NewName()), Below(2) == 0 ? "" : bytes);
      case 4:
        return Swap(file, JoinPath(path_, AnyName()));
      case 5:
        return WriteAll(file, foreign_.at(fs::path(file).filename()));
      case 6:
        return fs::rename(file, JoinPath(path_, NewName()));
      case 7:
        return ReplaceBySomethingElse(file, bytes);
      case 8:
        fs::remove(JoinPath(path_, "manifest.json"));
        return;
      default:
        fs::remove(JoinPath(path_, "checkpoint.h5"));
        return;
    }
  }

  // A name that no file of the checkpoint has.
  std::string NewName() {
    static const char* const kNames[] = {"notes.txt",
                                         ".hidden",
                                         "rank-00000-of-00099.h5",
                                         "rank-00003-of-00003.h5",
                                         "rank-00001-of-00003.step-00000007.h5",
                                         "parity-00000-of-00007.bin",
                                         "parity-00001-of-00001.bin",
                                         "rank-.h5",
                                         "checkpoint.h5.bak"};
    return kNames[Below(std::size(kNames))];
  }

  static void Swap(const std::string& a, const std::string& b) {
    if (a == b || !fs::is_regular_file(fs::symlink_status(b))) return;
    fs::rename(a, a + ".swapped");
    fs::rename(b, a);
    fs::rename(a + ".swapped", b);
  }

  void ReplaceBySomethingElse(const std::string& file, const std::string& bytes) {
    fs::remove(file);
    const std::string elsewhere = NewTestDirectory() + "/file";
    switch (Below(4)) {
      case 0:
        return fs::create_symlink("nothing", file);
      case 1:
        return fs::create_symlink(fs::path(file).filename(), file);
      case 2:
        WriteAll(elsewhere, bytes);
        return fs::create_symlink(elsewhere, file);
      default:
        fs::create_directory(file);
    }
  }

  static bool IsWhole(const absl::StatusOr<RepairReport>& report) { return report.ok() && report->is_whole(); }

  // The sentences of a repair without those about directories that it renamed, which a dry run cannot name.
  static std::vector<std::string> RepairedOf(const absl::StatusOr<RepairReport>& report) {
    std::vector<std::string> sentences = report.ok() ? report->repaired : std::vector<std::string>();
    sentences.erase(
        std::remove_if(sentences.begin(), sentences.end(),
                       [](const std::string& sentence) { return absl::StrContains(sentence, "in the way"); }),
        sentences.end());
    return sentences;
  }

  void ExpectAgreement() {
    const bool was_whole = Verifies();
    const Files before = FilesIn(path_);
    const absl::StatusOr<RepairReport> dry = RepairCheckpoint(path_, {.dry_run = true});
    EXPECT_TRUE(FilesIn(path_) == before) << "a dry run has changed something";
    const absl::StatusOr<RepairReport> real = RepairCheckpoint(path_);
    const Files after = FilesIn(path_);
    const std::string said = real.ok() ? testing::PrintToString(real->repaired) + testing::PrintToString(real->problems)
                                       : real.status().ToString();
    EXPECT_EQ(IsWhole(real), Verifies()) << said << ", and verify: " << problem_;
    EXPECT_EQ(was_whole, IsWhole(real) && real->repaired.empty()) << said;
    EXPECT_EQ(dry.status(), real.status());
    EXPECT_EQ(RepairedOf(dry), RepairedOf(real));
    EXPECT_EQ(dry.ok() ? dry->problems : std::vector<std::string>(),
              real.ok() ? real->problems : std::vector<std::string>());
    if (!IsWhole(real)) {
      EXPECT_TRUE(after == before) << "a repair that failed has changed something: " << said;
      return;
    }
    // If all files are of the other save, they are a checkpoint too, which cannot be recognised as misplaced.
    const bool is_foreign = ReadFile(JoinPath(path_, "manifest.json")) == foreign_.at("manifest.json");
    for (const auto& [name, bytes] : is_foreign ? foreign_ : good_) {
      ASSERT_TRUE(fs::exists(JoinPath(path_, name))) << name << ": " << said;
      EXPECT_TRUE(ReadFile(JoinPath(path_, name)) == bytes) << name << " is not as it was saved: " << said;
    }
  }

  // True if verify finds no problem; problem_ is the first one that it finds.
  bool Verifies() {
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(path_);
    problem_ = !report.ok() ? report.status().ToString() : report->problems.empty() ? "nothing" : report->problems[0];
    return report.ok() && report->problems.empty();
  }

  Files foreign_;  // of another save, with other values
  std::string problem_;
};

TEST_P(RepairAgreesTest, RepairSaysWholeWhereVerifyFindsNothingAndADryRunSaysTheSame) {
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE(absl::StrCat("case ", number));
    Begin(number);
    for (size_t left = 1 + Below(3); left > 0; --left) DamageOnce();
    ASSERT_NO_FATAL_FAILURE(ExpectAgreement());
  }
}

// Found by a random case: without a manifest, repair did not search for files that the rebuilt one would not name.
TEST_P(RepairAgreesTest, AnAdditionalFileIsNamedAndNothingIsChanged) {
  for (const bool has_manifest : {true, false}) {
    Begin(0);
    if (!has_manifest) fs::remove(JoinPath(path_, "manifest.json"));
    WriteAll(JoinPath(path_, "rank-00000-of-00099.h5"), "");
    const Files before = FilesIn(path_);
    const absl::StatusOr<RepairReport> report = RepairCheckpoint(path_);
    EXPECT_FALSE(IsWhole(report));
    EXPECT_TRUE(FilesIn(path_) == before);
    if (GetParam().type == StateDictType::kFull && !has_manifest) continue;
    ASSERT_OK(report);
    EXPECT_THAT(report->problems, Each(testing::HasSubstr("rank-00000-of-00099.h5: ")));
    EXPECT_THAT(report->repaired, IsEmpty());
  }
}

const Kind kKinds[] = {
    {"Full", StateDictType::kFull},
    {"Sharded", StateDictType::kSharded},
    {"ShardedParity1", StateDictType::kSharded, 1},
    {"ShardedParity2", StateDictType::kSharded, 2},
    {"Local", StateDictType::kLocal},
    {"LocalParity2", StateDictType::kLocal, 2},
    {"IncrementalParity2", StateDictType::kSharded, 2, true},
};

std::string NameOf(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, DamagedRangeTest, testing::ValuesIn(kKinds), NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, RepairAgreesTest, testing::ValuesIn(kKinds), NameOf);

}  // namespace
}  // namespace fsdp
