// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes: the launcher starts this program again as each rank. Each has its own default generator, so
// models with dropout can run under Checkpoint.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/collectives/launcher.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/collectives/self_launch.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

absl::Status Expect(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

absl::Status TrainsAsOneProcess(const std::shared_ptr<ProcessGroup>& group) {
  for (const char* name : {"tied_transformer", "mixture_of_experts", "lstm", "script"}) {
    for (const bool fsdp2 : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(const TrainedModel trained, TrainSharded(name, group, {.use_fsdp2 = fsdp2}, {}));
      const double difference = LargestDifference(TrainPlain(name, {}), trained.values);
      FSDP_RETURN_IF_ERROR(Expect(difference == 0, std::string(name) + " differs by " + std::to_string(difference)));
    }
  }
  return absl::OkStatus();
}

struct DropNetImpl : torch::nn::Module {
  DropNetImpl() {
    in = register_module("in", torch::nn::Linear(16, 64));
    out = register_module("out", torch::nn::Linear(64, 16));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::dropout(torch::gelu(in(x)), 0.5, is_training())); }
  torch::nn::Linear in{nullptr}, out{nullptr};
};

// The gradient of `in`, after a step with or without Checkpoint and with the same random numbers.
absl::StatusOr<at::Tensor> DroppedGradient(const std::shared_ptr<ProcessGroup>& group, bool checkpoint) {
  torch::manual_seed(3);
  DropNetImpl net;
  FSDP_ASSIGN_OR_RETURN(const auto sharded,
                        Shard(net, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Linear"}))}));
  torch::manual_seed(4);
  FSDP_RETURN_IF_ERROR(Caught([&] {
    const at::Tensor x = at::ones({8, 16});
    const at::Tensor y = sharded->Forward([&] {
      const auto forward = [&](const at::Tensor& in) { return net.forward(in); };
      return checkpoint ? sharded->Checkpoint(forward, x) : forward(x);
    });
    at::rand({3});  // random numbers drawn between the two runs do not matter
    y.square().sum().backward();
    return absl::OkStatus();
  }));
  FSDP_ASSIGN_OR_RETURN(const Tensor gradient, sharded->fsdp().GetFullGradient("in.weight"));
  return at::from_blob(gradient.data(), {64, 16}).clone();
}

absl::Status DropsTheSameUnderCheckpoint(const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const at::Tensor wanted, DroppedGradient(group, false));
  FSDP_ASSIGN_OR_RETURN(const at::Tensor got, DroppedGradient(group, true));
  FSDP_RETURN_IF_ERROR(Expect((wanted == 0).any().item<bool>() || wanted.abs().sum().item<float>() > 0, "no gradient"));
  return Expect(at::equal(wanted, got), "the gradient under Checkpoint is another");
}

// Two replicas of two shards, by both APIs.
std::vector<std::pair<std::string, TestSharding>> Hybrids() {
  const auto fsdp1 = [](ShardingStrategy strategy) {
    return TestSharding{.fsdp1 = {.sharding_strategy = strategy, .shard_group_size = 2}};
  };
  return {{"hybrid_shard", fsdp1(ShardingStrategy::kHybridShard)},
          {"hybrid_shard_zero2", fsdp1(ShardingStrategy::kHybridShardZero2)},
          {"mesh", TestSharding{.use_fsdp2 = true, .mesh = {2, 2}}}};
}

constexpr char kHybridModel[] = "transformer_encoder";
constexpr int kSavedAt = 2, kSteps = 4;
constexpr double kRounding = 1e-6;  // means over ranks are rounded elsewhere than the mean of all rows

// Each rank has its own rows, so that shards and replicas must both be summed.
struct SplitRowsTrainer {
  TestModel model;
  int64_t numel = 0;  // of the whole model
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<ShardedModule> sharded;
  std::unique_ptr<TorchOptimizer> optimizer;

  static absl::StatusOr<SplitRowsTrainer> Create(std::shared_ptr<ProcessGroup> group, const TestSharding& sharding) {
    at::set_num_threads(1);
    SplitRowsTrainer trainer{
        .model = MakeTestModel(kHybridModel), .group = group, .sharded = nullptr, .optimizer = nullptr};
    for (const at::Tensor& tensor : trainer.model.parameters()) trainer.numel += tensor.numel();
    FSDP_ASSIGN_OR_RETURN(trainer.sharded, ShardTestModel(trainer.model, group, sharding));
    const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.1);
    FSDP_ASSIGN_OR_RETURN(trainer.optimizer,
                          TorchOptimizer::Create(*trainer.sharded, std::make_unique<torch::optim::SGD>(
                                                                       trainer.sharded->LocalParameters(), options)));
    return trainer;
  }

  absl::Status Train(int begin, int end) {
    return Caught([&]() -> absl::Status {
      for (int step = begin; step < end; ++step) {
        const at::Tensor all = model.input(step);
        const int64_t rows = all.size(model.row_dimension) / group->size();
        const at::Tensor mine = all.narrow(model.row_dimension, rows * group->rank(), rows);
        sharded->Forward(model.forward, mine).square().mean().backward();
        FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
        optimizer->ZeroGrad();
      }
      return absl::OkStatus();
    });
  }

  absl::Status Save(const std::string& root) {
    const StateDictTypeGuard guard(sharded->fsdp(), ShardedStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(StateDict state, sharded->fsdp().GetStateDict());
    FSDP_RETURN_IF_ERROR(sharded->fsdp().AddOptimStateDict(*optimizer, state));
    return SaveCheckpoint(state, root, kSavedAt, *group).status();
  }

  absl::Status Restore(const std::string& root) {
    FSDP_ASSIGN_OR_RETURN(const std::string path, LatestCheckpoint(root));
    return sharded->fsdp().Restore(optimizer.get(), [&](StateDict& state) { return LoadCheckpoint(path, state); });
  }

  // The number of elements that all ranks hold together.
  absl::StatusOr<int64_t> HeldByAll() {
    const std::vector<at::Tensor>& local = sharded->LocalParameters();
    const int64_t mine = std::accumulate(local.begin(), local.end(), int64_t{0},
                                         [](int64_t sum, const at::Tensor& tensor) { return sum + tensor.numel(); });
    FSDP_ASSIGN_OR_RETURN(const auto all, group->AllGatherObject(absl::StrCat(mine)));
    int64_t sum = 0, one = 0;
    for (const std::string& text : all) sum += absl::SimpleAtoi(text, &one) ? one : 0;
    return sum;
  }
};

// Trains with a checkpoint on the way; another model, with other values, loads it and continues.
absl::Status TrainsAsOneProcessAndGoesOn(const std::shared_ptr<ProcessGroup>& group, const TestSharding& sharding,
                                         const std::string& root) {
  const TestTraining whole{.steps = kSteps, .adamw = false};
  FSDP_ASSIGN_OR_RETURN(SplitRowsTrainer trainer, SplitRowsTrainer::Create(group, sharding));
  FSDP_ASSIGN_OR_RETURN(const int64_t held, trainer.HeldByAll());
  FSDP_RETURN_IF_ERROR(Expect(held == 2 * trainer.numel,
                              absl::StrCat("ranks hold ", held, " elements, not two of each of ", trainer.numel)));
  FSDP_RETURN_IF_ERROR(trainer.Train(0, kSavedAt));
  FSDP_RETURN_IF_ERROR(trainer.Save(root));
  FSDP_RETURN_IF_ERROR(trainer.Train(kSavedAt, kSteps));
  FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*trainer.sharded));
  const double difference = LargestDifference(TrainPlain(kHybridModel, whole), values);
  FSDP_RETURN_IF_ERROR(Expect(difference <= kRounding, absl::StrCat("differs from one process by ", difference)));

  FSDP_ASSIGN_OR_RETURN(SplitRowsTrainer restored, SplitRowsTrainer::Create(group, sharding));
  FSDP_RETURN_IF_ERROR(restored.Train(7, 8));
  FSDP_RETURN_IF_ERROR(restored.Restore(root));
  FSDP_RETURN_IF_ERROR(restored.Train(kSavedAt, kSteps));
  FSDP_ASSIGN_OR_RETURN(const TorchValues again, FullValues(*restored.sharded));
  return Expect(LargestDifference(values, again) == 0, "continues differently from its checkpoint");
}

absl::Status RunHybridRank(const std::shared_ptr<ProcessGroup>& group, const std::string& root) {
  for (const auto& [name, sharding] : Hybrids()) {
    const absl::Status status = TrainsAsOneProcessAndGoesOn(group, sharding, absl::StrCat(root, "/", name));
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  }
  return absl::OkStatus();
}

// With an argument, the directory for checkpoints, a rank of the hybrid test.
absl::Status RunRank(int argc, char** argv) {
  at::set_num_threads(1);
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup());
  if (argc > 1) return RunHybridRank(group, argv[1]);
  FSDP_RETURN_IF_ERROR(TrainsAsOneProcess(group));
  return DropsTheSameUnderCheckpoint(group);
}

void LaunchRanks(int ranks, const std::vector<std::string>& arguments) {
  LaunchOptions options;
  options.nproc = ranks;
  options.command = {SelfPath()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<LaunchResult> result = Launch(options);
  ASSERT_OK(result.status());
  ASSERT_EQ(result->exit_code, 0) << result->description;
}

TEST(ShardedModuleProcessesTest, TwoProcessesTrainAsOneAndDropTheSameUnderCheckpoint) { LaunchRanks(2, {}); }

// The checkpoint of replicas of four processes continues in them with the same bits, and in this process on two ranks.
TEST(ShardedModuleProcessesTest, FourProcessesOfTwoReplicasTrainAsOneAndTheirCheckpointsGoOn) {
  const std::string root = testing::TempDir() + "/hybrid";
  ASSERT_NO_FATAL_FAILURE(LaunchRanks(4, {root}));
  const TorchValues plain = TrainPlain(kHybridModel, {.steps = kSteps, .adamw = false});
  for (const auto& [name, sharding] : Hybrids()) {
    SCOPED_TRACE(name);
    ASSERT_OK(RunRanks(2, [&, path = root + "/" + name](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(SplitRowsTrainer restored, SplitRowsTrainer::Create(group, {}));
      FSDP_RETURN_IF_ERROR(restored.Restore(path));
      FSDP_RETURN_IF_ERROR(restored.Train(kSavedAt, kSteps));
      FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*restored.sharded));
      EXPECT_LE(LargestDifference(plain, values), kRounding);
      return absl::OkStatus();
    }));
  }
}

// Threads share the generator, so the second run may get other numbers: that must be an error, never another gradient.
TEST(ShardedModuleProcessesTest, ThreadsThatDrawFromOneGeneratorGetAnErrorOrTheSameGradient) {
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    DropNetImpl net;
    FSDP_ASSIGN_OR_RETURN(const auto sharded, Shard(net, group));
    return Caught([&] {
      const at::Tensor x = at::ones({8, 16});
      const at::Tensor y = sharded->Forward([&] {
        at::Tensor out = sharded->Checkpoint(
            [&](const at::Tensor& in) {
              const at::Tensor dropped = net.forward(in);
              // As another thread would, only in the first run.
              if (!at::GradMode::is_enabled()) at::rand({1});
              return dropped;
            },
            x);
        return out;
      });
      EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), ::testing::HasSubstr("drew other random numbers"));
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (fsdp::InsideJob()) {
    const absl::Status status = fsdp::RunRank(argc, argv);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
