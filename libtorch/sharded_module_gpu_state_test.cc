// SPDX-License-Identifier: Apache-2.0
//
// On a GPU: optimizers of torch::optim with their state in checkpoints, and summoned parameters.
#include <torch/nn.h>

#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/libtorch/gpu_ranks_testutil.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/optimizers_testutil.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class ShardedModuleGpuStateTest : public GpuRanksTest {};

// Saved on two ranks in each form of state dict, restored on one, two and four, and trained on. Each rank sums the norm
// of a clip over its shards, so its last bit depends on the number of ranks: 2^-22 of an update of 0.1.
TEST_F(ShardedModuleGpuStateTest, CheckpointsHaveTheOptimizersStateAndGoOnOnOtherRanks) {
  for (const auto& [name, make] : TestOptimizers()) {
    if (name != "AdamW" && name != "SGD" && name != "Adagrad") continue;
    const auto resumed = ResumeOnOtherRanks(make, testing::TempDir() + "/gpu_" + name, /*max_norm=*/0.5f, RunGpuRanks);
    ASSERT_OK(resumed.status());
    EXPECT_EQ(resumed->size(), 9u);
    for (const ResumedTraining& one : *resumed) EXPECT_LE(one.difference, one.ranks == 2 ? 0 : 1e-6) << one.what;
  }
}

TEST_F(ShardedModuleGpuStateTest, SummonedParametersAreWholeAndEditsStay) {
  ASSERT_OK(RunGpuRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp", TestGpu()), plain = MakeTestModel("mlp");
    FsdpOptions options;
    options.mixed_precision.param_dtype = DType::kBFloat16;  // the original dtype is bound nevertheless
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.fsdp1 = options}));
    FSDP_ASSIGN_OR_RETURN(const auto guard, sharded->SummonFullParams());
    FSDP_RETURN_IF_ERROR(Caught([&] {
      const auto wanted = plain.module->named_parameters();
      for (const auto& item : model.module->named_parameters()) {
        EXPECT_TRUE(at::equal(item.value().cpu(), wanted[item.key()])) << item.key();
      }
      at::NoGradGuard no_grad;
      const at::Tensor weight = model.module->named_parameters()["layers.3.weight"];
      // The edit comes last in a long queue of work on LibTorch's stream.
      const at::Tensor large = at::ones({4096, 4096}, at::TensorOptions().device(TestGpu()));
      for (int i = 0; i < 20; ++i) weight.fill_(at::mm(large, large)[0][0] / (i == 19 ? 16384 : 1));
      return absl::OkStatus();
    }));
    FSDP_RETURN_IF_ERROR(guard->Close());
    FSDP_ASSIGN_OR_RETURN(TorchValues values, FullValues(*sharded));
    EXPECT_TRUE(at::equal(values["layers.3.weight"], at::full({16, 33}, 0.25)));
    EXPECT_EQ(sharded->bound_bytes(), 0);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
