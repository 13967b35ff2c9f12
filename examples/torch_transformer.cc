// SPDX-License-Identifier: Apache-2.0
//
// A model of torch::nn, sharded unchanged: a transformer of LibTorch's own layers learns sequences in which two tokens
// alternate. Start it as one process or as the ranks of a job:
//
//   launch --nproc=4 -- torch_transformer --checkpoint_dir=/tmp/sequences
//
// Started again, after any kind of end and on any number of ranks, it continues from the newest step that verifies.
// docs/libtorch.md explains it.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer.h"

ABSL_FLAG(int, steps, 300, "steps to train in all");
ABSL_FLAG(std::string, checkpoint_dir, "", "directory to save in and to resume from (default: nothing is saved)");
ABSL_FLAG(int, checkpoint_every, 50, "steps from one save to the next");

namespace fsdp {
namespace {

constexpr int64_t kVocab = 31, kWidth = 48, kHeads = 4, kLayers = 3, kLength = 16;
constexpr int64_t kRows = 24;  // per step, on all ranks together

// The model is plain LibTorch and knows no sharding. Its head is its embedding, under two names.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    head = register_parameter("head", token->weight);
    torch::nn::init::normal_(token->weight, 0, 0.1);
  }

  at::Tensor forward(const at::Tensor& tokens) {  // [rows, kLength] -> [rows, kLength, kVocab]
    at::Tensor x = token(tokens) + position(at::arange(kLength));
    const at::Tensor future = at::full({kLength, kLength}, -INFINITY).triu(1);
    x = layers(x.transpose(0, 1), future).transpose(0, 1);
    return at::matmul(x, head.t());
  }

  torch::nn::Embedding token = register_module("token", torch::nn::Embedding(kVocab, kWidth));
  torch::nn::Embedding position = register_module("position", torch::nn::Embedding(kLength, kWidth));
  torch::nn::TransformerEncoder layers = register_module(
      "layers",
      torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
          torch::nn::TransformerEncoderLayerOptions(kWidth, kHeads).dim_feedforward(4 * kWidth).dropout(0), kLayers)));
  at::Tensor head;
};
TORCH_MODULE(Net);

struct Batch {
  at::Tensor tokens, targets;  // [rows, kLength]

  // This rank's rows of a step, the same however many ranks there are.
  static Batch OfStep(int64_t step, int rank, int ranks) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(step);
    std::vector<at::Tensor> columns = at::randint(0, kVocab, {2, kRows}, generator, at::kLong).unbind();
    while (columns.size() <= kLength) columns.push_back(columns[columns.size() - 2]);
    const int64_t rows = kRows / ranks;
    const at::Tensor mine = at::stack(columns, 1).slice(0, rank * rows, (rank + 1) * rows);
    return {mine.slice(1, 0, kLength), mine.slice(1, 1)};
  }
};

const StateKey kStepsDone = StateKey::Extra("steps_done");

absl::Status Save(ShardedModule& model, Optimizer& optimizer, int steps_done, ProcessGroup& group) {
  // In host memory, which SaveCheckpoint requires; the ranks may be on GPUs.
  StateDictTypeGuard guard(model.fsdp(), ShardedStateDictConfig{.offload_to_cpu = true});
  FSDP_ASSIGN_OR_RETURN(StateDict state, model.fsdp().GetStateDict());
  FSDP_RETURN_IF_ERROR(model.fsdp().AddOptimStateDict(optimizer, state));
  state.Set(kStepsDone, absl::StrCat(steps_done));
  return SaveCheckpoint(state, absl::GetFlag(FLAGS_checkpoint_dir), steps_done, group, {.overwrite = true}).status();
}

// Returns the number of steps that the newest checkpoint has done; 0 if there is no checkpoint.
absl::StatusOr<int> Restore(ShardedModule& model, Optimizer& optimizer, ProcessGroup& group) {
  const absl::StatusOr<std::string> newest = LatestCheckpoint(absl::GetFlag(FLAGS_checkpoint_dir));
  if (absl::IsNotFound(newest.status())) return 0;
  FSDP_RETURN_IF_ERROR(newest.status());
  int steps_done = 0;
  FSDP_RETURN_IF_ERROR(model.fsdp().Restore(&optimizer, [&](StateDict& wanted) -> absl::Status {
    wanted.Set(kStepsDone, std::string());
    FSDP_RETURN_IF_ERROR(LoadCheckpoint(*newest, wanted, group, {.device = group.device().get()}));
    steps_done = std::atoi(wanted.FindText(kStepsDone)->c_str());
    return absl::OkStatus();
  }));
  return steps_done;
}

absl::Status Train() {
  at::set_num_threads(1);  // per rank
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup());
  if (kRows % group->size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(group->size(), " ranks: expected a divisor of ", kRows, " rows"));
  }
  torch::manual_seed(1);  // each rank keeps its shard of its own values, so all must have the same ones
  Net net;
  FSDP_ASSIGN_OR_RETURN(
      const auto model,
      Shard(*net, group, {.auto_wrap_policy = LambdaWrapPolicy(IsAnyTorch<torch::nn::TransformerEncoderLayerImpl>())}));
  FSDP_ASSIGN_OR_RETURN(
      const auto optimizer,
      TorchOptimizer::Create(
          *model, std::make_unique<torch::optim::AdamW>(model->LocalParameters(), torch::optim::AdamWOptions(3e-3))));
  const bool saves = !absl::GetFlag(FLAGS_checkpoint_dir).empty();
  int begin = 0;
  if (saves) {
    FSDP_ASSIGN_OR_RETURN(begin, Restore(*model, *optimizer, *group));
  }
  if (group->rank() == 0 && begin > 0) std::printf("%d steps are done\n", begin);
  const int steps = absl::GetFlag(FLAGS_steps), every = absl::GetFlag(FLAGS_checkpoint_every);
  for (int step = begin; step < steps; ++step) {
    const Batch batch = Batch::OfStep(step, group->rank(), group->size());
    const at::Tensor loss = model->Forward(
        [&] { return torch::nn::functional::cross_entropy(net(batch.tokens).flatten(0, 1), batch.targets.flatten()); });
    loss.backward();
    FSDP_RETURN_IF_ERROR(model->fsdp().ClipGradNorm(1.0f).status());
    FSDP_RETURN_IF_ERROR(optimizer->Step(model->stream()));
    optimizer->ZeroGrad();
    if (group->rank() == 0 && (step % 50 == 0 || step + 1 == steps)) {
      std::printf("step %3d  loss %.4f\n", step, loss.item<float>());
      std::fflush(stdout);
    }
    if (saves && (step + 1) % every == 0) FSDP_RETURN_IF_ERROR(Save(*model, *optimizer, step + 1, *group));
  }
  return model->stream().Synchronize();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "torch_transformer [flags]")) return *exit;
  if (absl::GetFlag(FLAGS_steps) < 1 || absl::GetFlag(FLAGS_checkpoint_every) < 1) {
    std::fprintf(stderr, "torch_transformer: --steps and --checkpoint_every: expected at least 1\n");
    return kExitUsage;
  }
  absl::Status status;
  try {
    status = Train();
  } catch (const c10::Error& error) {  // forward and backward throw, as LibTorch does
    status = absl::InternalError(error.what_without_backtrace());
  }
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "torch_transformer: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
