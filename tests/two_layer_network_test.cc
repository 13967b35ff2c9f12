// SPDX-License-Identifier: Apache-2.0
//
// The example for layers that are not Modules, as a user runs it: ranks learn a product, are killed, and continue on
// another number of ranks.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The loss that the example prints at a step; -1 if it prints none.
float LossAt(int step, const std::string& output) {
  char line[16];
  std::snprintf(line, sizeof(line), "step %3d  loss ", step);
  const size_t at = output.find(line);
  float loss = -1;
  if (at != std::string::npos) std::sscanf(output.c_str() + at, "step %*d loss %f", &loss);
  return loss;
}

class TwoLayerNetworkTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(program_, FindRunfile("examples/two_layer_network")); }

  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), program_);
    return ChildProcess::Start(flags);
  }

  // Its output, after it has exited with success.
  std::string Run(const std::vector<std::string>& flags) const {
    const absl::StatusOr<std::unique_ptr<ChildProcess>> child = Start(flags);
    if (!child.ok()) return child.status().ToString();
    EXPECT_THAT((*child)->Wait(absl::Seconds(60)), IsOkAndHolds(0)) << (*child)->output();
    return (*child)->output();
  }

  std::string program_;
};

TEST_F(TwoLayerNetworkTest, ThreeRanksLearnAProduct) {
  const std::string output = Run({});
  EXPECT_GT(LossAt(0, output), 0) << output;
  EXPECT_GE(LossAt(350, output), 0) << output;
  EXPECT_LT(LossAt(350, output), 0.1f * LossAt(0, output)) << output;
}

TEST_F(TwoLayerNetworkTest, IsKilledAndGoesOnAsAnotherNumberOfRanks) {
  const std::string root = JoinPath(NewTestDirectory(), "product"), dir = absl::StrCat("--checkpoint_dir=", root);
  const float undisturbed = LossAt(399, Run({}));
  ASSERT_GT(undisturbed, 0);

  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child,
                       Start({dir, "--steps=1000000", "--checkpoint_every=7"}));
  while (!fs::exists(JoinPath(root, "step-00000014")) && !child->Poll(absl::Milliseconds(1)).has_value()) {
  }
  child->Signal(SIGKILL);
  ASSERT_THAT(child->Wait(absl::Seconds(60)), IsOkAndHolds(128 + SIGKILL)) << child->output();
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(root));
  const int done = std::stoi(newest.substr(newest.rfind('-') + 1));
  ASSERT_GE(done, 14);
  if (done > 390) GTEST_SKIP() << "the example was not killed before it had done " << done << " steps";

  const std::string output = Run({dir, "--ranks=4"});
  EXPECT_THAT(output, HasSubstr(absl::StrCat(done, " steps are done\n")));
  EXPECT_NEAR(LossAt(399, output), undisturbed, 1e-3f * undisturbed) << output;
}

TEST_F(TwoLayerNetworkTest, AWrongFlagIsRefusedByName) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child, Start({"--ranks=5"}));
  EXPECT_THAT(child->Wait(absl::Seconds(60)), IsOkAndHolds(2));
  EXPECT_THAT(child->output(), HasSubstr("--ranks=5: expected a divisor of 24 rows"));
}

}  // namespace
}  // namespace fsdp
