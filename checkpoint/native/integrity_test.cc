// SPDX-License-Identifier: Apache-2.0
//
// The matrix of integrity: a flipped bit in each class of bytes of a checkpoint is found, and the report names the
// file, a range that holds the byte, and its contents. damage_test.cc flips bytes by position instead, and damages
// whole files.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr char kRankFile[] = "rank-00001-of-00002.h5";
constexpr char kMetadata[] = "HDF5 metadata and padding";

// A class of bytes: the place of one of them, and its name in the report.
struct Target {
  std::string name;
  std::string file;
  int64_t byte = 0;
  std::string what;
};

std::vector<TestTensor> Tensors() {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {9, 400}},
          {StateKey::Model("wpe.weight"), DType::kFloat32, {9, 400}},
          {StateKey::OptimState("wte.weight", "exp_avg"), DType::kBFloat16, {9, 4}},
          {StateKey::Model("100%/scale"), DType::kFloat32, {8}}};
}

StateDict State(StateDictType type, int rank) {
  switch (type) {
    case StateDictType::kFull:
      return FullState(Tensors());
    case StateDictType::kSharded:
      return ShardedState(Tensors(), 2, rank);
    case StateDictType::kLocal:
      return LocalState(Tensors(), 2, rank, {{"", {{"wte.weight", 0, 3600}, {"wpe.weight", 3600, 3600}}, 7200}});
  }
  return {};
}

std::string Save(StateDictType type) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(State(type, group->rank()), root, 1, *group).status();
  }));
  return root + "/step-00000001";
}

// The place of byte `skip` after `text` begins in a file.
int64_t Find(const std::string& path, const std::string& file, const std::string& text, int64_t skip = 0) {
  const size_t at = ReadFile(path + "/" + file).find(text);
  EXPECT_NE(at, std::string::npos) << text << " in " << file;
  return static_cast<int64_t>(at) + skip;
}

const StoredFile& FileOf(const Manifest& manifest, const std::string& name) {
  return *std::find_if(manifest.files.begin(), manifest.files.end(),
                       [&](const StoredFile& file) { return file.name == name; });
}

bool IsInExtent(const StoredFile& file, int64_t byte) {
  return std::any_of(file.extents.begin(), file.extents.end(), [&](const StoredExtent& extent) {
    return extent.range.offset <= byte && byte < extent.range.end();
  });
}

// As Find, but only in bytes that HDF5 wrote, since the record has the same names.
int64_t FindOutside(const std::string& path, const StoredFile& file, const std::string& text, int64_t skip) {
  const std::string bytes = ReadFile(path + "/" + file.name);
  for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
    if (!IsInExtent(file, static_cast<int64_t>(at))) return static_cast<int64_t>(at) + skip;
  }
  ADD_FAILURE() << text << " is not in what HDF5 wrote of " << file.name;
  return 0;
}

// A zero before an aligned extent, which is only padding.
std::optional<int64_t> FindPadding(const std::string& path, const StoredFile& file) {
  const std::string bytes = ReadFile(path + "/" + file.name);
  for (const StoredExtent& extent : file.extents) {
    const int64_t before = extent.range.offset - 1;
    if (extent.range.offset % 4096 == 0 && !IsInExtent(file, before) && bytes[before] == 0) return before;
  }
  return std::nullopt;
}

void AddManifest(const std::string& path, std::vector<Target>& targets) {
  const auto add = [&](const char* name, const char* text, int64_t skip) {
    targets.push_back(
        {absl::StrCat("manifest, ", name), "manifest.json", Find(path, "manifest.json", text, skip), "manifest"});
  };
  add("format", "fsdp checkpoint", 3);
  add("version", "\"version\"", 13);
  add("save id", "\"save_id\"", 15);
  add("step", "\"step\"", 8);
  add("a name", "wte.weight", 2);
  add("a shape", "\"shape\"", 10);
  add("an interval", "\"begin\"", 9);
  add("an offset", "\"offset\"", 10);
  add("a digest", "\"digests\"", 14);
  add("a digest of the rest", "\"rest_digest\"", 18);
  add("a brace", "{", 0);
  add("the seal", "\"digest\"", 14);
  const auto size = static_cast<int64_t>(ReadFile(path + "/manifest.json").size());
  targets.push_back({"manifest, the last newline", "manifest.json", size - 1, "manifest"});
}

// The parts that every HDF5 file of a checkpoint has.
void AddHdf5(const std::string& path, const Manifest& manifest, const std::string& file, std::vector<Target>& targets) {
  const auto add = [&](const char* name, int64_t byte) {
    targets.push_back({absl::StrCat(file, ", ", name), file, byte, kMetadata});
  };
  add("signature", 1);
  add("superblock", 9);
  add("end of file address", 40);
  const StoredFile& stored = FileOf(manifest, file);
  add("the name of a group", FindOutside(path, stored, "model", 2));
  add("the name of a dataset", FindOutside(path, stored, "wte.weight", 2));
  add("an escaped name", FindOutside(path, stored, "100%25%2Fscale", 4));
  add("an attribute", FindOutside(path, stored, "100%/scale", 4));
  if (const std::optional<int64_t> padding = FindPadding(path, stored)) add("padding", *padding);
}

void AddPayload(const Manifest& manifest, StateDictType type, std::vector<Target>& targets) {
  for (const StoredTensor& tensor : manifest.tensors) {
    const StoredInterval& stored = tensor.intervals.back();
    const std::string& file = manifest.files[stored.file].name;
    const int64_t nbytes = stored.interval.size() * SizeOf(tensor.dtype);
    // A block of a flat shard holds several tensors.
    const std::string what =
        type == StateDictType::kLocal ? "tensor" : absl::StrCat("tensor \"", tensor.key.ToString(), "\", block 0");
    targets.push_back({tensor.key.ToString() + ", first byte", file, stored.offset, what});
    targets.push_back({tensor.key.ToString() + ", last byte", file, stored.offset + nbytes - 1, what});
  }
  for (const StoredText& text : manifest.texts) {
    if (text.range.nbytes == 0) continue;
    targets.push_back({text.key.ToString(), manifest.files[text.file].name, text.range.offset,
                       absl::StrCat("text \"", text.key.ToString(), "\"")});
  }
}

// Finds the object header of a tensor, which has the address of its elements.
void AddTensorHeader(const std::string& path, const Manifest& manifest, std::vector<Target>& targets) {
  const StoredTensor& tensor = manifest.tensors[0];
  const StoredInterval& stored = tensor.intervals[0];
  const StoredFile& file = manifest.files[stored.file];
  // The layout message of contiguous data: the class, 1, then the address.
  std::string layout(1, '\1');
  layout.append(reinterpret_cast<const char*>(&stored.offset), sizeof(stored.offset));
  targets.push_back({"a layout message", file.name, FindOutside(path, file, layout, 0), kMetadata});
}

// The first rank file has copies of the texts, so that repair can rebuild checkpoint.h5 from rank files.
void AddCopiesOfTexts(const std::string& path, const Manifest& manifest, std::vector<Target>& targets) {
  const std::string first = "rank-00000-of-00002.h5";
  const std::string bytes = ReadFile(path + "/" + first);
  for (const StoredText& text : manifest.texts) {
    const std::string in_index = ReadFile(path + "/checkpoint.h5").substr(text.range.offset, text.range.nbytes);
    for (const StoredExtent& extent : FileOf(manifest, first).extents) {
      if (bytes.substr(extent.range.offset, extent.range.nbytes) != in_index) continue;
      targets.push_back({text.key.ToString() + ", its copy", first, extent.range.offset,
                         absl::StrCat("copy of text \"", text.key.ToString(), "\", block 0")});
    }
  }
}

void AddRecord(const std::string& path, std::vector<Target>& targets) {
  const auto add = [&](const char* name, int64_t byte) {
    targets.push_back({absl::StrCat("record, ", name), kRankFile, byte, "record"});
  };
  add("format", Find(path, kRankFile, "fsdp rank record", 5));
  add("rank", Find(path, kRankFile, "\"rank\"", 8));
  add("an interval", Find(path, kRankFile, "\"begin\"", 9));
  add("a digest", Find(path, kRankFile, "\"digests\"", 14));
  add("the seal", Find(path, kRankFile, "\"digest\"", 14));
  add("the newline", Find(path, kRankFile, "\"}\n", 2));
}

std::vector<Target> TargetsOf(const std::string& path, StateDictType type) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  EXPECT_OK(manifest.status());
  std::vector<Target> targets;
  AddManifest(path, targets);
  AddHdf5(path, *manifest, "checkpoint.h5", targets);
  AddPayload(*manifest, type, targets);
  if (type != StateDictType::kLocal) AddTensorHeader(path, *manifest, targets);
  if (type == StateDictType::kFull) return targets;
  targets.push_back({"the warning", "checkpoint.h5", Find(path, "checkpoint.h5", "ckpt verify", 2), kMetadata});
  if (type == StateDictType::kSharded) AddHdf5(path, *manifest, kRankFile, targets);
  const size_t others = targets.size();
  AddCopiesOfTexts(path, *manifest, targets);
  EXPECT_GT(targets.size(), others);
  AddRecord(path, targets);
  targets.push_back(
      {"a virtual dataset's file", "checkpoint.h5", Find(path, "checkpoint.h5", kRankFile, 9), kMetadata});
  return targets;
}

class IntegrityTest : public testing::TestWithParam<StateDictType> {};

TEST(IntegrityTargetsTest, PaddingIsAmongThem) {
  const std::vector<Target> targets = TargetsOf(Save(StateDictType::kFull), StateDictType::kFull);
  EXPECT_TRUE(std::any_of(targets.begin(), targets.end(),
                          [](const Target& target) { return absl::EndsWith(target.name, "padding"); }));
}

TEST_P(IntegrityTest, EveryClassOfBytesIsGuardedAndNamed) {
  const std::string path = Save(GetParam());
  const std::vector<Target> targets = TargetsOf(path, GetParam());
  EXPECT_GT(targets.size(), 25);
  for (const Target& target : targets) {
    SCOPED_TRACE(target.name);
    const std::string good = ReadFile(path + "/" + target.file);
    std::string bad = good;
    bad[target.byte] = static_cast<char>(bad[target.byte] ^ 1);
    WriteAll(path + "/" + target.file, bad);
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
    EXPECT_THAT(report.problems, testing::Contains(HasSubstr(target.file)));
    EXPECT_TRUE(std::any_of(report.damage.begin(), report.damage.end(), [&](const VerifyReport::Damage& damage) {
      return damage.file == target.file && damage.range.offset <= target.byte && target.byte < damage.range.end() &&
             absl::StartsWith(damage.what, target.what);
    })) << testing::PrintToString(report.problems);
    WriteAll(path + "/" + target.file, good);
  }
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
  EXPECT_THAT(report.problems, testing::IsEmpty());
  EXPECT_TRUE(report.damage.empty());
}

// Linked files and parity files are verified like the files that a save writes.
TEST(IntegrityOfFilesTest, ParityFilesAndLinkedFilesAreGuarded) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = {{StateKey::Model("wte.weight"), DType::kFloat32, {300, 200}}};
  for (const int64_t step : {1, 2}) {
    SaveOptions options = {.parity = 1};
    if (step == 2) options.base = root + "/step-00000001";
    ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      return SaveCheckpoint(ShardedState(tensors, 2, group->rank()), root, step, *group, options).status();
    }));
  }
  const std::string path = root + "/step-00000002";
  for (const std::string& name : ListNames(path)) {
    const bool is_link = absl::StrContains(name, ".step-");
    const std::string good = ReadFile(path + "/" + name);
    for (const size_t byte : {size_t{0}, size_t{40}, good.size() / 2, good.size() - 1}) {
      SCOPED_TRACE(absl::StrCat(name, " byte ", byte));
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ 4);
      WriteAll(path + "/" + name, bad);
      ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
      EXPECT_THAT(report.problems, testing::Contains(HasSubstr(name)));
      ASSERT_FALSE(report.damage.empty());
      EXPECT_EQ(report.damage[0].file, name);
      if (absl::StartsWith(name, "parity-")) {
        EXPECT_EQ(report.damage[0].what, "parity, block 0");
      }
      // One file with two names: the damage shows in both checkpoints.
      if (is_link) {
        ASSERT_OK_AND_ASSIGN(const VerifyReport base, VerifyCheckpoint(root + "/step-00000001"));
        EXPECT_FALSE(base.problems.empty());
      }
    }
    WriteAll(path + "/" + name, good);
  }
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
  EXPECT_THAT(report.problems, testing::IsEmpty());
  EXPECT_EQ(ListNames(path).size(), 7u);  // two of them linked
}

// A linked file also holds the old values of tensors that have changed since.
TEST(IntegrityOfFilesTest, UnusedBytesOfALinkedFileAreNamedWithTheirStep) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = {{StateKey::Model("frozen"), DType::kFloat32, {300, 200}},
                                           {StateKey::Model("trained"), DType::kFloat32, {30, 200}}};
  for (const int64_t step : {1, 2}) {
    ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      StateDict state = ShardedState(tensors, 1, 0);
      state.aliases.clear();
      state.FindTensor(tensors[1].key)->shards[0].data.data_as<float>()[0] = static_cast<float>(step);
      SaveOptions options;
      if (step == 2) options.base = root + "/step-00000001";
      return SaveCheckpoint(state, root, step, *group, options).status();
    }));
  }
  ASSERT_OK_AND_ASSIGN(const Manifest base, ReadManifest(PosixFileSystem(), root + "/step-00000001"));
  const int64_t trained = base.tensors[1].intervals[0].offset;
  const std::string file = root + "/step-00000001/rank-00000-of-00001.h5";
  const auto damage_of_step_2 = [&](int64_t byte) {
    std::string bytes = ReadFile(file);
    bytes[byte] = static_cast<char>(bytes[byte] ^ 4);
    WriteAll(file, bytes);
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root + "/step-00000002");
    EXPECT_OK(report);
    std::vector<std::string> whats;
    for (const VerifyReport::Damage& damage : report->damage) whats.push_back(damage.what);
    return whats;
  };
  EXPECT_THAT(damage_of_step_2(trained),
              testing::ElementsAre("tensor \"model/trained\" of step 1, unused here, block 0"));
  const auto own_record = base.files[base.tensors[1].intervals[0].file].record;
  ASSERT_TRUE(own_record);
  EXPECT_THAT(damage_of_step_2(own_record->offset + 100), testing::Contains("payload of step 1, unused here, block 0"))
      << "the record that has the name is damaged";
}

INSTANTIATE_TEST_SUITE_P(Kinds, IntegrityTest,
                         testing::Values(StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal),
                         [](const auto& info) { return std::string(StateDictTypeName(info.param)); });

}  // namespace
}  // namespace fsdp
