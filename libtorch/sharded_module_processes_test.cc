// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes: this program is started again by the launcher, as each rank. A default generator of their
// own lets models with dropout run under Checkpoint.
#include <torch/nn.h>

#include <cstdio>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/collectives/launcher.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/test_models.h"
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
    at::rand({3});  // what is drawn between the two runs does not matter
    y.square().sum().backward();
    return absl::OkStatus();
  }));
  FSDP_ASSIGN_OR_RETURN(const Tensor gradient, sharded->fsdp().FullGradient("in.weight"));
  return at::from_blob(gradient.data(), {64, 16}).clone();
}

absl::Status DropsTheSameUnderCheckpoint(const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const at::Tensor wanted, DroppedGradient(group, false));
  FSDP_ASSIGN_OR_RETURN(const at::Tensor got, DroppedGradient(group, true));
  FSDP_RETURN_IF_ERROR(Expect((wanted == 0).any().item<bool>() || wanted.abs().sum().item<float>() > 0, "no gradient"));
  return Expect(at::equal(wanted, got), "the gradient under Checkpoint is another");
}

absl::Status RunRank() {
  at::set_num_threads(1);
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup());
  FSDP_RETURN_IF_ERROR(TrainsAsOneProcess(group));
  return DropsTheSameUnderCheckpoint(group);
}

TEST(ShardedModuleProcessesTest, TwoProcessesTrainAsOneAndDropTheSameUnderCheckpoint) {
  LaunchOptions options;
  options.nproc = 2;
  options.command = {SelfPath()};
  const absl::StatusOr<LaunchResult> result = Launch(options);
  ASSERT_OK(result.status());
  EXPECT_EQ(result->exit_code, 0) << result->description;
}

// Threads share the generator, so the second run may find other numbers: an error, and never another gradient.
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
              // As another thread would, in the first run alone.
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
    const absl::Status status = fsdp::RunRank();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
