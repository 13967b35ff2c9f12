// SPDX-License-Identifier: Apache-2.0
//
// The rules of docs/checkpoint_format.md, one test each, on the bytes that SaveCheckpoint leaves.
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/tree/payload_writer.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string RankName(int rank, int world_size) {
  return absl::StrCat("rank-0000", rank, "-of-0000", world_size, ".h5");
}

// Saves the same tensors by `world_size` ranks; returns the checkpoint's path.
std::string Save(int world_size, StateDictType type = StateDictType::kSharded,
                 const std::vector<TestTensor>& tensors = AwkwardTensors()) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(StateOf(type, tensors, world_size, group->rank()), root, 100, *group).status();
  }));
  return root + "/step-00000100";
}

Manifest ManifestOf(const std::string& path) {
  absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  EXPECT_OK(manifest);
  return manifest.ok() ? *std::move(manifest) : Manifest();
}

const StoredTensor& Find(const Manifest& manifest, const StateKey& key) {
  return *std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                       [&](const StoredTensor& tensor) { return tensor.key == key; });
}

// The bytes of a file that are not payload.
std::string RestOf(const std::string& path, const StoredFile& file) {
  const std::string bytes = ReadFile(path + "/" + file.name);
  std::vector<ByteRange> taken;
  for (const StoredExtent& extent : file.extents) taken.push_back(extent.range);
  std::string rest;
  for (const ByteRange& range : RangesBetween(taken, file.nbytes)) rest += bytes.substr(range.offset, range.nbytes);
  return rest;
}

TEST(FormatTest, AStepIsADirectoryOfManifestIndexAndRankFiles) {
  EXPECT_THAT(ListNames(Save(2)), ElementsAre("checkpoint.h5", "manifest.json", RankName(0, 2), RankName(1, 2)));
  EXPECT_THAT(ListNames(Save(3, StateDictType::kFull)), ElementsAre("checkpoint.h5", "manifest.json"));
}

TEST(FormatTest, ChunksAreThoseOfTorchChunk) {
  const Manifest manifest = ManifestOf(Save(4));
  // 5 rows of 2 on 4 ranks: ceil(5/4) = 2 rows each, the last short, the fourth rank none.
  const StoredTensor& tensor = Find(manifest, StateKey::Model("100%/of.\xC3\xA4"));
  ASSERT_EQ(tensor.intervals.size(), 3);
  EXPECT_EQ(tensor.intervals[0].interval, (Interval{0, 4}));
  EXPECT_EQ(tensor.intervals[1].interval, (Interval{4, 8}));
  EXPECT_EQ(tensor.intervals[2].interval, (Interval{8, 10}));
  // 0-d: the first rank has it whole.
  const StoredTensor& scalar = Find(manifest, StateKey::Model("scale"));
  ASSERT_EQ(scalar.intervals.size(), 1);
  EXPECT_EQ(manifest.files[scalar.intervals[0].file].name, RankName(0, 4));
}

TEST(FormatTest, TensorsWithoutElementsLieInCheckpointH5) {
  const Manifest manifest = ManifestOf(Save(2));
  for (const char* name : {"empty", "empty.inside"}) {
    const StoredTensor& tensor = Find(manifest, StateKey::Model(name));
    ASSERT_EQ(tensor.intervals.size(), 1);
    EXPECT_EQ(tensor.intervals[0].interval, (Interval{0, 0}));
    EXPECT_EQ(manifest.files[tensor.intervals[0].file].name, "checkpoint.h5");
  }
}

TEST(FormatTest, PayloadLiesAtItsOffsetAsLittleEndianElements) {
  const std::string path = Save(3);
  const Manifest manifest = ManifestOf(path);
  for (const TestTensor& tensor : AwkwardTensors()) {
    for (const StoredInterval& stored : Find(manifest, tensor.key).intervals) {
      const Tensor expected = MakeElements(tensor, stored.interval);
      const std::string file = ReadFile(path + "/" + manifest.files[stored.file].name);
      EXPECT_EQ(file.substr(stored.offset, expected.nbytes()),
                std::string(expected.data_as<char>(), expected.nbytes()));
    }
  }
}

TEST(FormatTest, DatasetsOfTwoKibibytesAndMoreAreAligned) {
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    int large = 0;
    for (const StoredFile& file : ManifestOf(Save(2, type)).files) {
      for (const StoredExtent& extent : file.extents) {
        if (extent.range.nbytes < 2048) continue;
        EXPECT_EQ(extent.range.offset % 4096, 0);
        ++large;
      }
    }
    EXPECT_GE(large, 3);
  }
}

TEST(FormatTest, EqualStatesGiveEqualFilesByteForByte) {
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    mallopt(M_PERTURB, 0x5A);  // so that uninitialised memory of HDF5 would differ
    const std::string first = Save(2, type);
    mallopt(M_PERTURB, 0x33);
    const std::string second = Save(2, type);
    mallopt(M_PERTURB, 0);
    EXPECT_EQ(ReadFile(first + "/checkpoint.h5"), ReadFile(second + "/checkpoint.h5"));
    const Manifest a = ManifestOf(first);
    const Manifest b = ManifestOf(second);
    EXPECT_NE(a.save.id, b.save.id);
    for (size_t i = 0; i < a.files.size(); ++i) {
      EXPECT_EQ(a.files[i].rest_digest, b.files[i].rest_digest);
      ASSERT_EQ(a.files[i].extents.size(), b.files[i].extents.size());
      for (size_t k = 0; k < a.files[i].extents.size(); ++k) {
        const bool is_record = a.files[i].record && a.files[i].extents[k].range == *a.files[i].record;
        EXPECT_EQ(a.files[i].extents[k] == b.files[i].extents[k], !is_record);  // the record has the save id
      }
    }
  }
}

TEST(FormatTest, DigestsAreOfBlocksFromTheExtentsFirstByteAndOfTheRestInFileOrder) {
  const std::string path = Save(1);
  for (const StoredFile& file : ManifestOf(path).files) {
    const std::string bytes = ReadFile(path + "/" + file.name);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), file.nbytes);
    for (const StoredExtent& extent : file.extents) {
      const std::string payload = bytes.substr(extent.range.offset, extent.range.nbytes);
      const bool is_record = file.record && extent.range == *file.record;
      const size_t nbytes = is_record || payload.size() <= 1048576 ? 4194304 : 1048576;
      EXPECT_EQ(static_cast<size_t>(extent.block_bytes), nbytes);
      ASSERT_EQ(extent.digests.size(), (payload.size() + nbytes - 1) / nbytes);
      for (size_t block = 0; block < extent.digests.size(); ++block) {
        EXPECT_EQ(extent.digests[block], DigestOf(std::string_view(payload).substr(block * nbytes, nbytes)));
      }
    }
    EXPECT_EQ(DigestOf(std::string_view(RestOf(path, file))), file.rest_digest);
  }
}

TEST(FormatTest, TheManifestEndsWithItsOwnDigest) {
  const std::string text = ReadFile(Save(2) + "/manifest.json");
  ASSERT_EQ(text.substr(text.size() - 3), "\"}\n");
  const std::string before = text.substr(0, text.size() - 35);
  EXPECT_EQ(text.substr(text.size() - 35, 32), DigestOf(std::string_view(before)).ToHex());
  EXPECT_EQ(before.substr(before.size() - 11), "\"digest\": \"");
}

TEST(FormatTest, EveryRankFileDescribesItselfAtAnAlignedOffset) {
  const std::string path = Save(3);
  const Manifest manifest = ManifestOf(path);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string bytes = ReadFile(path + "/" + RankName(rank, 3));
    // Finds it as a repair without a manifest does.
    size_t at = 0;
    while (at < bytes.size() && bytes.compare(at, 32, "{\n  \"format\": \"fsdp rank record\"") != 0) at += 4096;
    ASSERT_LT(at, bytes.size());
    const size_t end = bytes.find("\"}\n", at) + 3;
    const std::string text = bytes.substr(at, end - at);
    EXPECT_EQ(text.size() % 4096, 0);
    ASSERT_OK_AND_ASSIGN(const FileRecord record, DecodeRecord(text));
    EXPECT_EQ(record.save.id, manifest.save.id);
    EXPECT_EQ(record.rank, rank);
    EXPECT_EQ(record.save.step, 100);
    EXPECT_EQ(record.files[0].name, RankName(rank, 3));
    EXPECT_EQ(record.files[0].nbytes, static_cast<int64_t>(bytes.size()));
  }
}

TEST(FormatTest, TheRecordsTogetherSayWhatTheManifestSaysOfTensors) {
  const std::string path = Save(3);
  const Manifest manifest = ManifestOf(path);
  std::vector<FileRecord> records;
  for (int rank = 0; rank < 3; ++rank) {
    const StoredFile& file = manifest.files[rank];
    const std::string bytes = ReadFile(path + "/" + file.name);
    ASSERT_OK_AND_ASSIGN(FileRecord record, DecodeRecord(bytes.substr(file.record->offset, file.record->nbytes)));
    records.push_back(std::move(record));
  }
  EXPECT_EQ(records[0].texts.size(), 3);  // the first also has the texts
  EXPECT_EQ(records[0].units.size(), 1);
  ASSERT_OK_AND_ASSIGN(const StoredValues merged, MergeRecords(records));
  ASSERT_EQ(merged.tensors.size(), manifest.tensors.size());
  for (size_t i = 0; i < merged.tensors.size(); ++i) {
    EXPECT_EQ(merged.tensors[i].key, manifest.tensors[i].key);
    EXPECT_EQ(merged.tensors[i].aliases, manifest.tensors[i].aliases);
    EXPECT_EQ(merged.tensors[i].dtype, manifest.tensors[i].dtype);
    EXPECT_EQ(merged.tensors[i].shape, manifest.tensors[i].shape);
    EXPECT_OK(CheckCovered(merged.tensors[i]));
  }
}

TEST(FormatTest, TiedWeightsAreStoredOnceAndLoadUnderEveryName) {
  const std::string path = Save(2);
  EXPECT_THAT(Find(ManifestOf(path), StateKey::Model("wte.weight")).aliases, ElementsAre("lm_head.weight"));
  ASSERT_OK_AND_ASSIGN(const StateDict described, DescribeCheckpoint(path));
  EXPECT_FALSE(described.contains(StateKey::Model("lm_head.weight")));
  EXPECT_EQ(described.aliases.at("lm_head.weight"), "wte.weight");
  const TestTensor stored = {StateKey::Model("wte.weight"), DType::kFloat32, {257, 48}};
  StateDict wanted = WantedState({{StateKey::Model("lm_head.weight"), DType::kFloat32, {257, 48}}}, 2, 1);
  ASSERT_OK(LoadCheckpoint(path, wanted));
  const ShardedTensor::Shard& shard = wanted.FindTensor(StateKey::Model("lm_head.weight"))->shards[0];
  const Tensor expected = MakeElements(stored, shard.interval);
  EXPECT_EQ(memcmp(shard.data.data(), expected.data(), expected.nbytes()), 0);
}

TEST(FormatTest, NamesOf64KibibytesAreStored) {
  std::vector<TestTensor> tensors = {{StateKey::Model("wte.weight"), DType::kFloat32, {2}}};
  tensors.push_back({StateKey::Model(std::string(65536, '%')), DType::kFloat32, {3}});
  tensors.push_back({StateKey::OptimState(std::string(65536, '/'), std::string(65536, 'x')), DType::kFloat32, {3}});
  const std::string path = Save(2, StateDictType::kSharded, tensors);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
  EXPECT_THAT(report.problems, IsEmpty());
  StateDict wanted = WantedState(tensors, 1, 0);
  EXPECT_OK(LoadCheckpoint(path, wanted));
  EXPECT_OK(CheckState(tensors, wanted));
}

TEST(FormatTest, AUserMayGiveTheDirectoryAnyName) {
  const std::string path = Save(2);
  const std::string renamed = NewTestDirectory() + "/my favourite";
  std::filesystem::rename(path, renamed);
  StateDict wanted = WantedState(AwkwardTensors(), 1, 0);
  EXPECT_OK(LoadCheckpoint(renamed, wanted));
  EXPECT_OK(CheckState(AwkwardTensors(), wanted));
}

TEST(FormatTest, TheProcessUmaskIsRespected) {
  const mode_t before = umask(0027);
  const std::string path = Save(2);
  umask(before);
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750);
  for (const std::string& name : ListNames(path)) {
    ASSERT_EQ(stat((path + "/" + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0640) << name;
  }
}

// Readers accept any cut of a tensor: flat slices that are not rows, as in LOCAL, load like chunks.
TEST(FormatTest, AnyIntervalsLoad) {
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
  for (int rank = 0; rank < 3; ++rank) {
    StateDict wanted = WantedState({tensor}, 3, rank);
    EXPECT_OK(LoadCheckpoint(root + "/step-00000001", wanted));
    EXPECT_OK(CheckState({tensor}, wanted));
  }
}

}  // namespace
}  // namespace fsdp
