// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/verify/hdf5_structures.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/save/hdf5_sink.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/test_state.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::IsEmpty;

// A file of a checkpoint and where it has no payload. Many tensors: the library then keeps their names in a heap with a
// B-tree.
struct SavedFile {
  std::string bytes;
  std::vector<ByteRange> gaps;

  std::vector<DamagedStructure> Find() const {
    std::vector<DamagedStructure> all;
    for (const ByteRange& gap : gaps) {
      const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data()) + gap.offset;
      const auto found = FindDamagedStructures(absl::MakeConstSpan(begin, gap.nbytes), gap.offset);
      all.insert(all.end(), found.begin(), found.end());
    }
    return all;
  }
};

std::vector<SavedFile> SavedFiles() {
  const std::string path = NewTestDirectory() + "/checkpoint";
  std::vector<TestTensor> tensors = AwkwardTensors();
  for (int i = 0; i < 40; ++i) tensors.push_back({StateKey::Model(absl::StrCat("layers.", i)), DType::kFloat32, {5}});
  const StateDict state = FullState(tensors);
  CheckpointDirectoryOptions options;
  options.type = StateDictType::kSharded;
  options.world_size = 2;
  const PayloadReader zeros = [&](const StateKey& key, const Interval& interval, void* out) {
    std::memset(out, 0, interval.size() * SizeOf(state.FindTensor(key)->dtype));
    return absl::OkStatus();
  };
  EXPECT_OK(WriteCheckpointDirectory(path, state, zeros, options));
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  EXPECT_OK(manifest);
  std::vector<SavedFile> files;
  for (const StoredFile& stored : manifest->files) {
    std::vector<ByteRange> taken;
    for (const StoredExtent& extent : stored.extents) taken.push_back(extent.range);
    files.push_back({ReadAll(path + "/" + stored.name), RangesBetween(taken, stored.nbytes)});
  }
  return files;
}

TEST(Hdf5StructuresTest, WhatIsWholeIsNotNamed) {
  for (const SavedFile& file : SavedFiles()) {
    for (const DamagedStructure& found : file.Find()) EXPECT_EQ(found.kind, kGlobalHeapKind);
  }
}

// Every byte: the structure that is named holds it, but for a global heap's, which nothing guards.
TEST(Hdf5StructuresTest, TheStructureWithTheDamagedByteIsNamed) {
  std::map<std::string, int> kinds;
  for (SavedFile& file : SavedFiles()) {
    const std::vector<DamagedStructure> heaps = file.Find();
    for (const ByteRange& gap : file.gaps) {
      for (int64_t at = gap.offset; at < gap.end(); at += 61) {
        const auto holds = [&](const DamagedStructure& found) {
          return found.range.offset <= at && at < found.range.end();
        };
        if (std::any_of(heaps.begin(), heaps.end(), holds)) continue;
        file.bytes[at] = static_cast<char>(file.bytes[at] ^ 0x20);
        const std::vector<DamagedStructure> found = file.Find();
        const auto it = std::find_if(found.begin(), found.end(), holds);
        EXPECT_TRUE(it != found.end()) << at << " of " << testing::PrintToString(found.size());
        if (it != found.end()) ++kinds[it->kind];
        file.bytes[at] = static_cast<char>(file.bytes[at] ^ 0x20);
      }
    }
  }
  for (const char* kind : {"object header", "B-tree", "fractal heap", "padding"}) EXPECT_GT(kinds[kind], 0) << kind;
}

TEST(Hdf5StructuresTest, BytesThatAreNoFileAtAllAreMetadata) {
  std::string bytes(300, '\0');
  EXPECT_THAT(FindDamagedStructures({}, 7), IsEmpty());
  std::fill(bytes.begin() + 100, bytes.begin() + 150, 'x');
  const auto view = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  const std::vector<DamagedStructure> found = FindDamagedStructures(view, 1000);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, "metadata");
  EXPECT_EQ(found[0].range.offset, 1100);
  EXPECT_EQ(found[0].range.nbytes, 50);
}

}  // namespace
}  // namespace fsdp
