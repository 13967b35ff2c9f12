// SPDX-License-Identifier: Apache-2.0
//
// Runs whose ranks were given different things to read, or different flags: none of them trains a step.
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RanksAgreeTest : public TrainingFixture {
 protected:
  // A run of two steps whose random weights follow from `seed`; returns its directory of checkpoints.
  std::string Trained(uint64_t seed) {
    TrainOptions options = Options(2);
    options.checkpoint_dir = NewRunPath();
    options.fsdp.init_seed = seed;
    EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) { return TrainRank(options, group); }));
    return options.checkpoint_dir;
  }

  // The error of starting two ranks, of which rank 1 has options that `change` has changed. All ranks have the same.
  absl::Status Start(const TrainOptions& first, const std::function<void(TrainOptions&)>& change) {
    std::vector<absl::Status> results(2);
    (void)RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainOptions options = first;
      if (group->rank() == 1) change(options);
      return results[group->rank()] = Trainer::Create(options, group).status();
    });
    EXPECT_EQ(results[0].message(), results[1].message());
    return results[0];
  }
};

TEST_F(RanksAgreeTest, InitFromOfTwoModelsIsRefused) {
  TrainOptions options = Options(2);
  options.init_from = Trained(1);
  const std::string other = Trained(2);
  EXPECT_THAT(Start(options, [&](TrainOptions& rank1) { rank1.init_from = other; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the checkpoint to load: step 2 of save "), HasSubstr(options.init_from),
                             HasSubstr(other), HasSubstr(" on rank 1 ("))));
}

TEST_F(RanksAgreeTest, CopiesOfOneModelInTwoPlacesAreLoaded) {
  TrainOptions options = Options(2);
  options.init_from = Trained(1);
  const std::string copy = NewRunPath();
  fs::copy(options.init_from, copy, fs::copy_options::recursive);
  EXPECT_OK(Start(options, [&](TrainOptions& rank1) { rank1.init_from = copy; }));
}

TEST_F(RanksAgreeTest, OtherFlatLayoutsAreRefused) {
  TrainOptions options = Options(2);
  options.flat_layout = directory_ + "/a.json";
  std::ofstream(options.flat_layout) << R"({"parameters": [{"name": "w", "shape": [2, 3]}]})";
  std::ofstream(directory_ + "/b.json") << R"({"parameters": [{"name": "w", "shape": [3, 2]}]})";
  EXPECT_THAT(Start(options, [&](TrainOptions& rank1) { rank1.flat_layout = directory_ + "/b.json"; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the layout of --flat_layout: 1 parameters"), HasSubstr("/b.json"))));
}

TEST_F(RanksAgreeTest, OtherTokensAreRefusedByBothPaths) {
  const std::string other = directory_ + "/other.u16";
  std::ofstream(other, std::ios::binary) << std::string(1800, '\0');
  EXPECT_THAT(Start(Options(2), [&](TrainOptions& rank1) { rank1.tokens = other; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("data.digest: "), HasSubstr("/tokens.u16), "), HasSubstr("/other.u16);"))));
}

TEST_F(RanksAgreeTest, AFlagThatDiffersIsNamedBeforeAnythingIsRead) {
  TrainOptions options = Options(2);
  options.config = directory_ + "/none.json";
  options.agreed_flags = {{"--async_checkpoint", "false"}, {"--lr", "0.1"}};
  EXPECT_THAT(Start(options, [](TrainOptions& rank1) { rank1.agreed_flags[0].value = "true"; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--async_checkpoint: false on rank 0 ("), HasSubstr("), true on rank 1 ("),
                             HasSubstr("); expected the same on all ranks: start all ranks with the same flags"))));
}

}  // namespace
}  // namespace fsdp
