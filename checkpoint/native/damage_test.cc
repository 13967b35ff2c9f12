// SPDX-License-Identifier: Apache-2.0
//
// All damage to a checkpoint on disk is found by VerifyCheckpoint, which reports the place, and by LoadCheckpoint
// before a wrong value can be used.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
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

constexpr char kRank0[] = "rank-00000-of-00002.h5";
constexpr char kRank1[] = "rank-00001-of-00002.h5";

std::vector<TestTensor> SmallTensors() {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {9, 4}},
          {StateKey::OptimState("wte.weight", "exp_avg"), DType::kBFloat16, {9, 4}},
          {StateKey::Model("h.0.bias"), DType::kFloat32, {1000}},
          {StateKey::Model("empty"), DType::kFloat32, {0}}};
}

// More than one block on each of two ranks.
std::vector<TestTensor> LargeTensors() { return {{StateKey::Model("wte.weight"), DType::kFloat32, {12, 262144}}}; }

std::string Save(const std::vector<TestTensor>& tensors, StateDictType type, const std::string& root, int64_t step) {
  const absl::Status saved = RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = type == StateDictType::kFull ? FullState(tensors) : ShardedState(tensors, 2, group->rank());
    return SaveCheckpoint(state, root, step, *group).status();
  });
  EXPECT_OK(saved);
  return absl::StrCat(root, "/step-0000000", step);
}

std::vector<std::string> ProblemsOf(const std::string& path) {
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(path);
  EXPECT_OK(report);
  return report.ok() ? report->problems : std::vector<std::string>{"no report"};
}

// Loads all tensors as one rank.
absl::Status Load(const std::vector<TestTensor>& tensors, const std::string& path) {
  StateDict wanted = WantedState(tensors, 1, 0);
  FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, wanted));
  const absl::Status values = CheckState(tensors, wanted);
  return values.ok() ? values : absl::InternalError(absl::StrCat("wrong values were loaded: ", values.message()));
}

void FlipBit(const std::string& path, size_t byte, int bit) {
  std::string bytes = ReadFile(path);
  ASSERT_LT(byte, bytes.size());
  bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
  WriteAll(path, bytes);
}

class BitFlipTest : public testing::TestWithParam<StateDictType> {};

// Every byte of every file: payload, padding, HDF5 metadata, record, manifest, digest.
TEST_P(BitFlipTest, OneFlippedBitAnywhereIsFoundInTheFileThatHasIt) {
  const std::string path = Save(SmallTensors(), GetParam(), NewTestDirectory(), 1);
  for (const std::string& name : ListNames(path)) {
    const std::string file = path + "/" + name;
    const std::string good = ReadFile(file);
    // A prime stride visits every kind of byte and every bit; with 1 the test would take minutes.
    for (size_t byte = 0; byte < good.size(); byte += 23) {
      const int bit = static_cast<int>(byte / 23 % 8);
      SCOPED_TRACE(absl::StrCat(name, " byte ", byte, " bit ", bit));
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      WriteAll(file, bad);
      EXPECT_THAT(ProblemsOf(path), Contains(HasSubstr(name)));
      const absl::Status loaded = Load(SmallTensors(), path);
      EXPECT_TRUE(loaded.ok() || absl::IsDataLoss(loaded)) << loaded;
    }
    WriteAll(file, good);
  }
  EXPECT_THAT(ProblemsOf(path), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, BitFlipTest, testing::Values(StateDictType::kFull, StateDictType::kSharded),
                         [](const auto& info) { return info.param == StateDictType::kFull ? "Full" : "Sharded"; });

TEST(DamageTest, AFlippedBitOfPayloadNamesTensorFileBlockAndBytes) {
  const std::string path = Save(LargeTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), path));
  const StoredInterval& stored = manifest.tensors[0].intervals[1];
  const StoredExtent* const extent = ExtentAt(manifest.files[stored.file], stored.offset);
  ASSERT_NE(extent, nullptr);
  const ByteRange second = extent->block(1);
  EXPECT_EQ(second, (ByteRange{stored.offset + kDigestBlockBytes, kDigestBlockBytes}));
  const std::string bytes = ReadFile(path + "/" + kRank1);
  FlipBit(path + "/" + kRank1, second.offset + 5, 3);
  const Digest recorded = DigestOf(std::string_view(bytes).substr(second.offset, second.nbytes));
  const std::string expected =
      absl::StrCat("rank-00001-of-00002.h5, ", Describe(second), " (tensor \"model/wte.weight\", block 1): digest ");
  const std::vector<std::string> problems = ProblemsOf(path);
  ASSERT_EQ(problems.size(), 1);
  EXPECT_THAT(problems[0], AllOf(testing::StartsWith(expected), testing::EndsWith(" != recorded " + recorded.ToHex())));
  EXPECT_THAT(Load(LargeTensors(), path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path + "/" + expected)));
}

// Without the member "block", digests cover 4 MiB, as in the first version of the format.
TEST(DamageTest, BlocksAreAsLongAsTheManifestSays) {
  const std::string path = Save(LargeTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(PosixFileSystem(), path));
  for (StoredFile& file : manifest.files) {
    const std::string bytes = ReadFile(path + "/" + file.name);
    for (StoredExtent& extent : file.extents) {
      extent.block_bytes = kBlockBytes;
      extent.digests.clear();
      for (int64_t i = 0; i < extent.blocks(); ++i) {
        const ByteRange block = extent.block(i);
        extent.digests.push_back(DigestOf(std::string_view(bytes).substr(block.offset, block.nbytes)));
      }
    }
  }
  WriteAll(path + "/manifest.json", EncodeManifest(manifest));
  EXPECT_THAT(ProblemsOf(path), IsEmpty());
  EXPECT_OK(Load(LargeTensors(), path));
  const StoredInterval& stored = manifest.tensors[0].intervals[1];
  FlipBit(path + "/" + kRank1, stored.offset + kBlockBytes - 1, 3);
  const std::vector<std::string> problems = ProblemsOf(path);
  ASSERT_EQ(problems.size(), 1);
  EXPECT_THAT(problems[0], HasSubstr(Describe(ByteRange{stored.offset, kBlockBytes})));
  EXPECT_THAT(Load(LargeTensors(), path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("block 0")));
}

TEST(DamageTest, OnlyWhoNeedsTheDamagedPartFails) {
  const std::string path = Save(LargeTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  fs::remove(path + "/" + kRank1);
  StateDict first = WantedState(LargeTensors(), 2, 0);
  EXPECT_OK(LoadCheckpoint(path, first));
  StateDict second = WantedState(LargeTensors(), 2, 1);
  EXPECT_THAT(LoadCheckpoint(path, second),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00001-of-00002.h5: the file is missing")));
}

TEST(DamageTest, AllProblemsAreFoundAtOnce) {
  const std::string path = Save(LargeTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  FlipBit(path + "/" + kRank0, 3 << 20, 0);
  FlipBit(path + "/" + kRank0, 5 << 20, 0);
  fs::remove(path + "/" + kRank1);
  WriteAll(path + "/notes.txt", "mine");
  EXPECT_THAT(ProblemsOf(path),
              ElementsAre(HasSubstr("notes.txt: the manifest names no such file"), HasSubstr("block 2"),
                          HasSubstr("block 4"), HasSubstr("rank-00001-of-00002.h5: the file is missing")));
}

TEST(DamageTest, ATruncatedFileIsFoundAtEveryLength) {
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  for (const std::string& name : ListNames(path)) {
    const std::string file = path + "/" + name;
    const std::string good = ReadFile(file);
    for (size_t size = 0; size < good.size(); size += 1 + good.size() / 23) {
      SCOPED_TRACE(absl::StrCat(name, " cut to ", size));
      WriteAll(file, good.substr(0, size));
      EXPECT_THAT(ProblemsOf(path), Contains(HasSubstr(name)));
      if (name == "checkpoint.h5") continue;  // holds the texts
      EXPECT_THAT(Load(SmallTensors(), path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
    }
    WriteAll(file, good);
  }
}

TEST(DamageTest, ALongerFileIsFound) {
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  WriteAll(path + "/" + kRank0, ReadFile(path + "/" + kRank0) + std::string(1, '\0'));
  EXPECT_THAT(ProblemsOf(path), Contains(HasSubstr("rank-00000-of-00002.h5: the file has ")));
}

TEST(DamageTest, SwappedRankFilesAreFoundBeforeAValueIsUsed) {
  const std::string path = Save(LargeTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  const std::string first = ReadFile(path + "/" + kRank0);
  WriteAll(path + "/" + kRank0, ReadFile(path + "/" + kRank1));
  WriteAll(path + "/" + kRank1, first);
  EXPECT_THAT(ProblemsOf(path), AllOf(Contains(HasSubstr(kRank0)), Contains(HasSubstr(kRank1))));
  for (const bool verify : {true, false}) {  // even if digests are ignored
    StateDict wanted = WantedState(LargeTensors(), 1, 0);
    EXPECT_THAT(LoadCheckpoint(path, wanted, {.verify = verify}), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(DamageTest, TheSameRankOfAnotherSaveIsNamedAsSuch) {
  const std::string root = NewTestDirectory();
  const std::string old_path = Save(SmallTensors(), StateDictType::kSharded, root, 1);
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, root, 2);
  WriteAll(path + "/" + kRank1, ReadFile(old_path + "/" + kRank1));
  EXPECT_THAT(ProblemsOf(path), Contains(AllOf(HasSubstr(kRank1), HasSubstr("it is of another save"))));
  StateDict wanted = WantedState(SmallTensors(), 1, 0);
  EXPECT_THAT(LoadCheckpoint(path, wanted, {.verify = false}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it is of another save")));
}

TEST(DamageTest, AFileTwiceIsFound) {
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  WriteAll(path + "/rank-00002-of-00002.h5", ReadFile(path + "/" + kRank1));
  EXPECT_THAT(ProblemsOf(path), ElementsAre("rank-00002-of-00002.h5: the manifest names no such file"));
  fs::remove(path + "/rank-00002-of-00002.h5");
  WriteAll(path + "/" + kRank0, ReadFile(path + "/" + kRank1));
  EXPECT_THAT(ProblemsOf(path), Contains(HasSubstr(kRank0)));
}

TEST(DamageTest, ASpecialFileInPlaceOfAFileIsFoundWithoutBlocking) {
  const std::string root = NewTestDirectory();
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, root, 1);
  for (const std::string name : {kRank0, "checkpoint.h5", "manifest.json"}) {
    const std::string file = path + "/" + name;
    const std::string good = ReadFile(file);
    const std::vector<std::pair<std::string, std::function<void()>>> others = {
        {"is not a regular file, but a directory", [&] { fs::create_directory(file); }},
        {"is not a regular file, but a FIFO", [&] { ASSERT_EQ(mkfifo(file.c_str(), 0600), 0); }},
        {"is not a regular file, but a device", [&] { fs::create_symlink("/dev/zero", file); }},
        {"is not a regular file, but a loop of links", [&] { fs::create_symlink(name, file); }},
        {"is not a regular file, but a socket", [&] { ASSERT_EQ(mknod(file.c_str(), S_IFSOCK | 0600, 0), 0); }},
    };
    for (const auto& [what, put] : others) {
      SCOPED_TRACE(absl::StrCat(name, " ", what));
      fs::remove(file);
      put();
      EXPECT_THAT(ProblemsOf(path), Contains(AllOf(HasSubstr(name), HasSubstr(what))));
      ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
      ASSERT_FALSE(report.damage.empty());
      EXPECT_EQ(report.damage[0].file, name);
      EXPECT_THAT(LatestCheckpoint(root), StatusIs(absl::StatusCode::kNotFound, HasSubstr(what)));
      if (name == "checkpoint.h5") continue;  // which our readers do not need
      EXPECT_THAT(Load(SmallTensors(), path),
                  StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(file), HasSubstr(what))));
    }
    fs::remove(file);
    WriteAll(file, good);
  }
  EXPECT_THAT(ProblemsOf(path), IsEmpty());
}

TEST(DamageTest, AMissingManifestIsSaid) {
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, NewTestDirectory(), 1);
  fs::remove(path + "/manifest.json");
  EXPECT_THAT(ProblemsOf(path), ElementsAre("manifest.json: the file is missing"));
  EXPECT_THAT(VerifyCheckpoint(NewTestDirectory()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("manifest.json")));
}

TEST(DamageTest, TheManifestOfAnotherSaveIsFound) {
  const std::string root = NewTestDirectory();
  const std::string old_path = Save(SmallTensors(), StateDictType::kSharded, root, 1);
  const std::string path = Save(SmallTensors(), StateDictType::kSharded, root, 2);
  WriteAll(path + "/manifest.json", ReadFile(old_path + "/manifest.json"));
  EXPECT_THAT(ProblemsOf(path), Contains(HasSubstr("manifest.json is of another save than the rank files")));
  EXPECT_THAT(Load(SmallTensors(), path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it is of another save")));
  // One misplaced file does not mean that the manifest is misplaced.
  const std::string third = Save(SmallTensors(), StateDictType::kSharded, root, 3);
  WriteAll(third + "/" + kRank0, ReadFile(path + "/" + kRank0));
  EXPECT_THAT(ProblemsOf(third), Not(Contains(HasSubstr("manifest.json is"))));
}

}  // namespace
}  // namespace fsdp
