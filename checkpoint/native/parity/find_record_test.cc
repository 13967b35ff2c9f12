// SPDX-License-Identifier: Apache-2.0
//
// Files that look like records on every page; repair_test.cc tests that records of lost manifests are found.
#include "fsdp/checkpoint/native/parity/find_record.h"

#include <cstring>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/tree/tree_layout.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr char kBeginning[] = "{\n  \"format\": \"fsdp rank record\",\n";

// A page that begins and ends with these texts.
std::string Page(const std::string& first, const std::string& last) {
  return first + std::string(kRecordAlignment - first.size() - last.size(), ' ') + last;
}

absl::StatusOr<FileRecord> Find(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  return FindRecord(*file);
}

// The search in a file of `pages` takes no longer than reading it a few times.
void ExpectNothingSoon(const std::string& pages) {
  const std::string path = NewTestDirectory() + "/rank-00000-of-00001.h5";
  WriteAll(path, pages);
  const absl::Time began = SteadyNow();
  EXPECT_THAT(Find(path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no undamaged record")));
  EXPECT_LT(SteadyNow() - began, absl::Seconds(10));
}

std::string Repeated(const std::string& page) {
  std::string pages;
  while (pages.size() < size_t{64} << 20) pages += page;
  return pages;
}

// Regression: the text was digested from its beginning at each page that ends as a seal does: a minute for 64 MiB.
TEST(FindRecordTest, PagesThatEndAsASealDoesAreDigestedOnce) {
  ExpectNothingSoon(Page(kBeginning, "") + Repeated(Page("", std::string(32, '0') + "\"}\n")));
}

// Regression: each of them was read to the end of the file.
TEST(FindRecordTest, PagesThatBeginAsARecordDoesAreReadOnce) { ExpectNothingSoon(Repeated(Page(kBeginning, ""))); }

TEST(FindRecordTest, ARightSealOfWhatIsNoRecordEndsThatText) {
  const std::string sealed = Seal(kBeginning + std::string("  \"step\": 1"), kRecordAlignment);
  ASSERT_OK(CheckSeal(sealed));
  ExpectNothingSoon(Repeated(sealed));
}

TEST(FindRecordTest, WhatLooksLikeARecordHidesNoRecordBehindIt) {
  const std::string path = NewTestDirectory() + "/checkpoint";
  StateDict state = FullState({{StateKey::Model("w"), DType::kFloat32, {5000}}});
  state.aliases.clear();
  ASSERT_OK(
      WriteCheckpointDirectory(path, state, ReadFromMemory(state), {.type = StateDictType::kSharded, .world_size = 2}));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), path));
  for (const StoredFile& stored : manifest.files) {
    if (!stored.record) continue;
    const std::string file = path + "/" + stored.name;
    std::string bytes = ReadFile(file);
    for (int64_t at = 0; at < stored.record->offset; at += kRecordAlignment) {
      bytes.replace(at, std::strlen(kBeginning), kBeginning);
    }
    WriteAll(file, bytes);
    ASSERT_OK_AND_ASSIGN(const FileRecord found, Find(file));
    EXPECT_EQ(found.save.id, manifest.save.id);
    EXPECT_EQ(found.files[0].record, stored.record);
    EXPECT_EQ(found.files[0].extents, stored.extents);
  }
}

}  // namespace
}  // namespace fsdp
