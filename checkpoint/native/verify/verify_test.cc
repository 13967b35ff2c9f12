// SPDX-License-Identifier: Apache-2.0
//
// The counts and reports of VerifyCheckpoint; damage_test.cc and integrity_test.cc test that damage is found.
#include "fsdp/checkpoint/native/verify/verify.h"

#include <cmath>
#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Two blocks of float32 with a NaN in each and an infinity, a bfloat16 of only NaN, and integers of all ones.
StateDict StateWithNonFinite() {
  StateDict state = FullState({{StateKey::Model("w"), DType::kFloat32, {3, 700'000}},
                               {StateKey::Model("fine"), DType::kFloat32, {5}},
                               {StateKey::Model("half"), DType::kBFloat16, {4}},
                               {StateKey::Model("count"), DType::kInt32, {6}}});
  state.aliases.clear();
  auto* w = static_cast<float*>(state.FindTensor(StateKey::Model("w"))->shards[0].data.data());
  w[7] = std::nanf("");
  w[2'099'999] = -std::nanf("");
  w[1'048'576] = -INFINITY;
  auto* half = static_cast<uint16_t*>(state.FindTensor(StateKey::Model("half"))->shards[0].data.data());
  std::fill(half, half + 4, 0x7FFF);
  auto* count = static_cast<int32_t*>(state.FindTensor(StateKey::Model("count"))->shards[0].data.data());
  std::fill(count, count + 6, -1);
  return state;
}

void ExpectCounts(const VerifyReport& report) {
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.nonfinite.size(), 2);
  EXPECT_EQ(report.nonfinite[0].name, "model/w");
  EXPECT_EQ(report.nonfinite[0].count.nan, 2);
  EXPECT_EQ(report.nonfinite[0].count.inf, 1);
  EXPECT_EQ(report.nonfinite[1].name, "model/half");
  EXPECT_EQ(report.nonfinite[1].count.nan, 4);
}

TEST(VerifyTest, CountsNaNAndInfinityOfEachTensor) {
  const StateDict state = StateWithNonFinite();
  for (const int world_size : {1, 2, 3}) {
    const std::string path = NewTestDirectory() + "/checkpoint";
    CheckpointDirectoryOptions options;
    options.type = world_size == 1 ? StateDictType::kFull : StateDictType::kSharded;
    options.world_size = world_size;
    ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path, {.count_nonfinite = true}));
    ExpectCounts(report);
    ASSERT_OK_AND_ASSIGN(const VerifyReport uncounted, VerifyCheckpoint(path));
    EXPECT_TRUE(uncounted.nonfinite.empty());
  }
}

// Regression: this made a list of 2^40 pieces to read.
TEST(VerifyTest, AFileThatAManifestCallsHugeIsOneProblem) {
  StateDict state = FullState({{StateKey::Model("w"), DType::kFloat32, {300}}});
  state.aliases.clear();
  const std::string path = NewTestDirectory() + "/checkpoint";
  ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), {}));
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(PosixFileSystem(), path));
  ASSERT_EQ(manifest.files.size(), 1);
  manifest.files[0].nbytes = int64_t{1} << 62;
  WriteAll(path + "/manifest.json", EncodeManifest(manifest));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("expected 4611686018427387904")));
}

}  // namespace
}  // namespace fsdp
