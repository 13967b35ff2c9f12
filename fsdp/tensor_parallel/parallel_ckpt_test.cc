// SPDX-License-Identifier: Apache-2.0
//
// The program ckpt on a checkpoint of a model with tensor parallelism: whole tensors under their own names, for a
// reader that knows no mesh.
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// SHARDED checkpoints in a new directory: of a trained model on {dp, tp} = {2, 2}; and of first values, which are the
// same on all meshes, there and without tensor parallelism.
class ParallelCkptTest : public testing::TestWithParam<TestApi> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/parallel-ckpt-XXXXXX";
    root_ = mkdtemp(pattern.data());
    ASSERT_OK(Save({2, 2}, /*steps=*/2, trained_));
    ASSERT_OK(Save({2, 2}, /*steps=*/0, first_));
    ASSERT_OK(Save({3, 1}, /*steps=*/0, plain_));
    ASSERT_OK_AND_ASSIGN(ckpt_, FindRunfile("tools/ckpt"));
  }

  absl::Status Save(const std::vector<int>& sizes, int steps, std::string& path) {
    const int step = ++saves_;
    return RunRanks(sizes[0] * sizes[1], [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(ParallelModel made, ParallelModel::Make(group, sizes, GetParam()));
      for (int i = 0; i < steps; ++i) FSDP_RETURN_IF_ERROR(made.Train(i).status());
      const StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{.offload_to_cpu = true});
      FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
      if (steps > 0) FSDP_RETURN_IF_ERROR(made.model->AddOptimStateDict(*made.optimizer, state));
      FSDP_ASSIGN_OR_RETURN(const std::string saved, SaveCheckpoint(state, root_, step, *group));
      if (group->rank() == 0) path = saved;
      return absl::OkStatus();
    });
  }

  // The output of ckpt with `arguments`, which must exit with `exit_status`.
  std::string Ckpt(std::vector<std::string> arguments, int exit_status = 0) const {
    arguments.insert(arguments.begin(), ckpt_);
    const absl::StatusOr<ProgramResult> run = RunProgram(arguments, absl::Minutes(1));
    EXPECT_OK(run);
    if (!run.ok()) return "";
    EXPECT_EQ(run->exit_status, exit_status) << arguments[1] << ": " << run->output;
    return run->output;
  }

  int saves_ = 0;
  std::string root_, trained_, first_, plain_, ckpt_;
};

TEST_P(ParallelCkptTest, InspectShowsWholeTensorsUnderTheirOwnNames) {
  const auto report = nlohmann::json::parse(Ckpt({"inspect", trained_, "--tensors", "--json"}), nullptr, false);
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("world_size"), 4);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& tensor : report.at("tensors")) {
    shapes[tensor.at("name").get<std::string>()] = tensor.at("shape").get<std::vector<int64_t>>();
  }
  // Cut by rows, by columns, and not at all.
  EXPECT_EQ(shapes["model/3.weight"], (std::vector<int64_t>{24, 6}));
  EXPECT_EQ(shapes["model/5.weight"], (std::vector<int64_t>{6, 24}));
  EXPECT_EQ(shapes["model/6.weight"], (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(shapes["model/1.o_proj.weight"], (std::vector<int64_t>{6, 6}));
}

TEST_P(ParallelCkptTest, VerifyReadsEveryByteAndDiffFindsNoneThatDiffersFromAPlainModels) {
  Ckpt({"verify", trained_});
  Ckpt({"diff", first_, plain_});
}

TEST_P(ParallelCkptTest, ConvertsToOneFileAndBackWithoutAChangedBit) {
  const std::string file = root_ + "/exported.safetensors", back = root_ + "/back";
  Ckpt({"convert", trained_, file, "--to=safetensors", "--model_only"});
  Ckpt({"diff", trained_, file, "--model_only"});
  Ckpt({"convert", trained_, back, "--to=hdf5", "--state_dict_type=sharded", "--world_size=3"});
  Ckpt({"verify", back});
  Ckpt({"diff", trained_, back});
}

INSTANTIATE_TEST_SUITE_P(Apis, ParallelCkptTest, testing::Values(TestApi::kFsdp1, TestApi::kFsdp2));

}  // namespace
}  // namespace fsdp
