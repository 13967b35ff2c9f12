// SPDX-License-Identifier: Apache-2.0
//
// The collective LoadCheckpoint: ranks that read by themselves load the same, or nothing. Ranks are threads here; each
// has a directory of its own, as hosts with their own disks have.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const StateKey kWeight = StateKey::Model("w");

// w, whose elements are `values`.
StateDict StateOf(std::vector<float>& values) {
  const auto numel = static_cast<int64_t>(values.size());
  StateDict state;
  state.Set(kWeight, ShardedTensor::Whole(Tensor(Buffer::Unowned(values.data(), numel * SizeOf(DType::kFloat32)),
                                                 DType::kFloat32, {numel})));
  return state;
}

// Saves w = `value` as a step of `root`.
void Save(const std::string& root, int64_t step, float value) {
  std::vector<float> values(3, value);
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(StateOf(values), root, step, *group).status();
  }));
}

// Writes w = `value` as a safetensors file.
std::string FileWith(const std::string& path, float value) {
  std::vector<float> values(3, value);
  const StateDict state = StateOf(values);
  EXPECT_OK(WriteSafetensors(path, state, ReadFromMemory(state)));
  return path;
}

using Load = absl::Status (*)(const std::string&, StateDict&, ProcessGroup&, const LoadOptions&);

struct Loaded {
  std::vector<absl::Status> statuses;  // by rank
  std::vector<float> values;           // the last element of w, by rank; -1 if it was not touched
};

// Each rank loads w from its own path.
Loaded LoadFromEach(const std::vector<std::string>& paths, Load load = LoadCheckpoint) {
  Loaded loaded{.statuses = std::vector<absl::Status>(paths.size()), .values = std::vector<float>(paths.size())};
  EXPECT_OK(RunRanks(static_cast<int>(paths.size()), [&](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<float> values(3, -1);
    StateDict wanted = StateOf(values);
    loaded.statuses[group->rank()] = load(paths[group->rank()], wanted, *group, {});
    loaded.values[group->rank()] = values.back();
    return absl::OkStatus();
  }));
  return loaded;
}

class LoadTogetherTest : public testing::TestWithParam<Load> {
 protected:
  const std::string a_ = NewTestDirectory();
  const std::string b_ = NewTestDirectory();
};

INSTANTIATE_TEST_SUITE_P(Both, LoadTogetherTest,
                         testing::Values(static_cast<Load>(LoadCheckpoint), static_cast<Load>(LoadNativeCheckpoint)));

TEST_P(LoadTogetherTest, RanksThatSeeOtherNewestStepsLoadTheStepOfRank0) {
  Save(a_, 1, 1);
  fs::copy(a_, b_, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  Save(b_, 2, 2);
  const Loaded loaded = LoadFromEach({a_, b_}, GetParam());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(loaded.statuses[rank]);
    EXPECT_EQ(loaded.values[rank], 1) << rank;
  }
}

TEST_P(LoadTogetherTest, EqualStepsOfOtherSavesAreRefusedBeforeAnythingIsRead) {
  Save(a_, 1, 1);
  Save(b_, 1, 1);
  const Loaded loaded = LoadFromEach({a_, a_, b_}, GetParam());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(loaded.statuses[rank],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("the checkpoint to load: step 1 of save "), HasSubstr(" on rank 0 ("),
                               HasSubstr(absl::StrCat(a_, "/step-00000001), step 1 of save ")),
                               HasSubstr(" on rank 2 ("), HasSubstr("give every host a copy of the same checkpoint"))));
    EXPECT_EQ(loaded.values[rank], -1);
  }
}

TEST_P(LoadTogetherTest, AStepThatOneRankLacksIsEveryRanksError) {
  Save(a_, 1, 1);
  Save(b_, 2, 2);
  for (const absl::Status& status : LoadFromEach({a_, b_}, GetParam()).statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                 AllOf(HasSubstr("rank 1 of 2: "), HasSubstr("/step-00000001 does not exist"))));
  }
}

// As after a copy that failed, or in a cache of another revision: equal names, shapes and sizes.
TEST(LoadTogetherForeignTest, FilesWithOtherValuesAreRefused) {
  const std::string root = NewTestDirectory();
  const std::string a = FileWith(root + "/a.safetensors", 1);
  const std::string b = FileWith(root + "/b.safetensors", 2);
  ASSERT_EQ(fs::file_size(a), fs::file_size(b));
  const Loaded loaded = LoadFromEach({a, b});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(loaded.statuses[rank],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("1 file of "), HasSubstr(" bytes, digest of all bytes "),
                               HasSubstr(absl::StrCat(", ", a, "), ")), HasSubstr(absl::StrCat(", ", b, ");")))));
    EXPECT_EQ(loaded.values[rank], -1);
  }
}

TEST(LoadTogetherForeignTest, EqualFilesInOtherPlacesAreLoaded) {
  const std::string root = NewTestDirectory();
  const Loaded loaded = LoadFromEach({FileWith(root + "/a.safetensors", 3), FileWith(root + "/b.safetensors", 3)});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_OK(loaded.statuses[rank]);
    EXPECT_EQ(loaded.values[rank], 3);
  }
}

TEST(ResolveCheckpointTest, TheNewestStepOfRank0IsNamedInTheDirectoryOfEachRank) {
  const std::string a = NewTestDirectory(), b = NewTestDirectory();
  Save(a, 7, 1);
  EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const std::string& mine = group->rank() == 0 ? a : b;
    FSDP_ASSIGN_OR_RETURN(const std::string resolved, ResolveCheckpoint(mine, *group));
    EXPECT_EQ(resolved, mine + "/step-00000007");
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
