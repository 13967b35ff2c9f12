// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/optimizers_testutil.h"

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

namespace optim = torch::optim;

// In host memory, which SaveCheckpoint requires.
std::vector<StateDictSettings> Forms() {
  return {StateDictSettings(FullStateDictConfig{.offload_to_cpu = true}),
          StateDictSettings(ShardedStateDictConfig{.offload_to_cpu = true}),
          StateDictSettings(LocalStateDictConfig{.offload_to_cpu = true},
                            LocalOptimStateDictConfig{.offload_to_cpu = true})};
}

std::string DirectoryOf(const std::string& root, const StateDictSettings& form) {
  return absl::StrCat(root, "/", std::string(StateDictTypeName(form.type())));
}

absl::Status SaveInEachForm(OptimizerTraining& training, const std::string& root, ProcessGroup& group) {
  for (const StateDictSettings& form : Forms()) {
    const StateDictTypeGuard guard(training.sharded->fsdp(), form);
    FSDP_ASSIGN_OR_RETURN(StateDict state, training.sharded->fsdp().GetStateDict());
    FSDP_RETURN_IF_ERROR(training.sharded->fsdp().AddOptimStateDict(*training.optimizer, state));
    // A test run by hand finds the checkpoints of the last run.
    FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, DirectoryOf(root, form), 2, group, {.overwrite = true}).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchValues> ValuesAfterTheRest(OptimizerTraining& training, const std::string& directory,
                                               ProcessGroup& group) {
  FSDP_RETURN_IF_ERROR(training.Step(7));  // other values, which the checkpoint replaces
  FSDP_ASSIGN_OR_RETURN(const std::string path, LatestCheckpoint(directory));
  FSDP_RETURN_IF_ERROR(training.sharded->fsdp().Restore(training.optimizer.get(), [&](StateDict& state) {
    return LoadCheckpoint(path, state, {.device = group.device().get()});
  }));
  FSDP_RETURN_IF_ERROR(training.Step(2));
  return FullValues(*training.sharded);
}

}  // namespace

const std::vector<std::pair<std::string, MakeOptimizer>>& TestOptimizers() {
  static const auto& all = *new std::vector<std::pair<std::string, MakeOptimizer>>{
      // Options that switch on every state: amsgrad, momentum, centered.
      {"Adam", OptimizerMaker<optim::Adam>(optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.1))},
      {"AdamW", OptimizerMaker<optim::AdamW>(optim::AdamWOptions(1e-2))},
      {"SGD", OptimizerMaker<optim::SGD>(optim::SGDOptions(1e-3).momentum(0.9).dampening(0.1))},
      // No state at all.
      {"plain_SGD", OptimizerMaker<optim::SGD>(optim::SGDOptions(1e-3))},
      {"RMSprop", OptimizerMaker<optim::RMSprop>(optim::RMSpropOptions(1e-3).momentum(0.5).centered(true))},
      {"Adagrad",
       OptimizerMaker<optim::Adagrad>(optim::AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.1))},
  };
  return all;
}

absl::StatusOr<OptimizerTraining> OptimizerTraining::Create(std::shared_ptr<ProcessGroup> group,
                                                            const MakeOptimizer& make, const TestSharding& sharding) {
  at::set_num_threads(1);
  OptimizerTraining training;
  training.model = MakeTestModel("tied_transformer", TorchDeviceOf(*group->device()));
  FSDP_ASSIGN_OR_RETURN(training.sharded, ShardTestModel(training.model, group, sharding));
  FSDP_ASSIGN_OR_RETURN(training.optimizer,
                        TorchOptimizer::Create(*training.sharded, make(training.sharded->LocalParameters())));
  return training;
}

absl::Status OptimizerTraining::Step(int step) {
  return Caught([&]() -> absl::Status {
    sharded->Forward(model.forward, model.input(step)).square().mean().backward();
    // Between backward and the update, which reads the clipped gradients.
    if (max_norm.has_value()) FSDP_RETURN_IF_ERROR(sharded->fsdp().ClipGradNorm(*max_norm).status());
    FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
    optimizer->ZeroGrad();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<ResumedTraining>> ResumeOnOtherRanks(const MakeOptimizer& make, const std::string& root,
                                                                std::optional<float> max_norm,
                                                                const RunTestRanks& run) {
  // Trains `body` on `ranks` ranks; returns rank 0's values.
  using Body = std::function<absl::StatusOr<TorchValues>(OptimizerTraining & training, ProcessGroup & group)>;
  const auto values_of = [&](int ranks, const TestSharding& sharding, const Body& body) -> absl::StatusOr<TorchValues> {
    TorchValues first;
    FSDP_RETURN_IF_ERROR(run(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(OptimizerTraining training, OptimizerTraining::Create(group, make, sharding));
      training.max_norm = max_norm;
      const bool is_first = group->rank() == 0;
      FSDP_ASSIGN_OR_RETURN(TorchValues values, body(training, *group));
      if (is_first) first = std::move(values);
      return absl::OkStatus();
    }));
    return first;
  };
  FSDP_ASSIGN_OR_RETURN(
      const TorchValues wanted,
      values_of(2, {}, [&](OptimizerTraining& training, ProcessGroup& group) -> absl::StatusOr<TorchValues> {
        for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(training.Step(step));
        FSDP_RETURN_IF_ERROR(SaveInEachForm(training, root, group));
        FSDP_RETURN_IF_ERROR(training.Step(2));
        return FullValues(*training.sharded);
      }));
  std::vector<ResumedTraining> all;
  for (const int ranks : {1, 2, 4}) {
    for (const StateDictSettings& form : Forms()) {
      const std::string directory = DirectoryOf(root, form);
      // Four ranks use FSDP2, so that what FSDP1 saved is restored by the other API too.
      FSDP_ASSIGN_OR_RETURN(const TorchValues values, values_of(ranks, {.use_fsdp2 = ranks == 4},
                                                                [&](OptimizerTraining& training, ProcessGroup& group) {
                                                                  return ValuesAfterTheRest(training, directory, group);
                                                                }));
      all.push_back({absl::StrCat(directory, " on ", ranks), ranks, LargestDifference(wanted, values)});
    }
  }
  return all;
}

}  // namespace fsdp
