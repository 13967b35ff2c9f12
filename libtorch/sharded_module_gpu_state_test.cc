// SPDX-License-Identifier: Apache-2.0
//
// On a GPU: optimizers of torch::optim with their state in checkpoints, and summoned parameters.
#include <torch/nn.h>
#include <torch/optim.h>

#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/libtorch/gpu_ranks_fixture.h"
#include "fsdp/libtorch/test_models.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace optim = torch::optim;

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <typename O, typename Options>
MakeOptimizer Maker(const Options& options) {
  return [options](const std::vector<at::Tensor>& tensors) { return std::make_unique<O>(tensors, options); };
}

const std::vector<std::pair<std::string, MakeOptimizer>>& Optimizers() {
  static const auto& all = *new std::vector<std::pair<std::string, MakeOptimizer>>{
      {"AdamW", Maker<optim::AdamW>(optim::AdamWOptions(1e-2))},
      {"SGD", Maker<optim::SGD>(optim::SGDOptions(1e-1).momentum(0.9).dampening(0.1))},
      {"Adagrad", Maker<optim::Adagrad>(optim::AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.1))},
  };
  return all;
}

struct Trainer {
  TestModel model;
  std::unique_ptr<ShardedModule> sharded;
  std::unique_ptr<TorchOptimizer> optimizer;

  static absl::StatusOr<Trainer> Create(std::shared_ptr<ProcessGroup> group, const MakeOptimizer& make,
                                        const TestSharding& sharding) {
    Trainer trainer{.model = MakeTestModel("tied_transformer", TestGpu()), .sharded = nullptr, .optimizer = nullptr};
    FSDP_ASSIGN_OR_RETURN(trainer.sharded, ShardTestModel(trainer.model, group, sharding));
    FSDP_ASSIGN_OR_RETURN(trainer.optimizer,
                          TorchOptimizer::Create(*trainer.sharded, make(trainer.sharded->LocalParameters())));
    return trainer;
  }

  absl::Status Step(int step) {
    return Caught([&]() -> absl::Status {
      sharded->Forward(model.forward, model.input(step)).square().mean().backward();
      FSDP_RETURN_IF_ERROR(sharded->fsdp().ClipGradNorm(0.5f).status());
      FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
      optimizer->ZeroGrad();
      return absl::OkStatus();
    });
  }
};

class ShardedModuleGpuStateTest : public GpuRanksTest {};

// Saved on two ranks in each form of state dict, restored on one, two and four, and trained on. The ranks of a clip sum
// its norm over their shards, so that its last bit depends on how many they are: 2^-22 of an update of 0.1.
TEST_F(ShardedModuleGpuStateTest, CheckpointsHaveTheOptimizersStateAndGoOnOnOtherRanks) {
  constexpr double kBound = 1e-6;
  // In host memory, which SaveCheckpoint wants.
  const std::vector<StateDictSettings> forms = {StateDictSettings(FullStateDictConfig{.offload_to_cpu = true}),
                                                StateDictSettings(ShardedStateDictConfig{.offload_to_cpu = true}),
                                                StateDictSettings(LocalStateDictConfig{.offload_to_cpu = true},
                                                                  LocalOptimStateDictConfig{.offload_to_cpu = true})};
  for (const auto& [optimizer, make] : Optimizers()) {
    const std::string root = testing::TempDir() + "/gpu_" + optimizer;
    TorchValues wanted;
    ASSERT_OK(RunGpuRanks(2, [&, &make = make](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(Trainer trainer, Trainer::Create(group, make, {}));
      for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trainer.Step(step));
      for (const StateDictSettings& form : forms) {
        const StateDictTypeGuard guard(trainer.sharded->fsdp(), form);
        FSDP_ASSIGN_OR_RETURN(StateDict state, trainer.sharded->fsdp().GetStateDict());
        FSDP_RETURN_IF_ERROR(trainer.sharded->fsdp().AddOptimStateDict(*trainer.optimizer, state));
        const std::string name(StateDictTypeName(form.type()));
        FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, root + "/" + name, 2, *group).status());
      }
      FSDP_RETURN_IF_ERROR(trainer.Step(2));
      const bool is_first = group->rank() == 0;
      FSDP_ASSIGN_OR_RETURN(TorchValues values, FullValues(*trainer.sharded));
      if (is_first) wanted = std::move(values);
      return absl::OkStatus();
    }));
    for (const int ranks : {1, 2, 4}) {
      for (const StateDictSettings& form : forms) {
        const std::string name(StateDictTypeName(form.type()));
        SCOPED_TRACE(optimizer + ", " + name + " on " + std::to_string(ranks));
        ASSERT_OK(RunGpuRanks(ranks, [&, &make = make](std::shared_ptr<ProcessGroup> group) -> absl::Status {
          FSDP_ASSIGN_OR_RETURN(Trainer trainer, Trainer::Create(group, make, {.use_fsdp2 = ranks == 4}));
          FSDP_RETURN_IF_ERROR(trainer.Step(7));  // other values, which the checkpoint replaces
          FSDP_ASSIGN_OR_RETURN(const std::string path, LatestCheckpoint(root + "/" + name));
          FSDP_RETURN_IF_ERROR(trainer.sharded->fsdp().Restore(trainer.optimizer.get(), [&](StateDict& state) {
            return LoadCheckpoint(path, state, {.device = group->device().get()});
          }));
          FSDP_RETURN_IF_ERROR(trainer.Step(2));
          FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*trainer.sharded));
          EXPECT_LE(LargestDifference(wanted, values), ranks == 2 ? 0 : kBound);
          return absl::OkStatus();
        }));
      }
    }
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
      // The edit is the last of much that LibTorch's stream has to do.
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
