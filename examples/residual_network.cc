// SPDX-License-Identifier: Apache-2.0
//
// A model of one's own, made from the layers of nn/: a residual block with its own backward, in a Sequential. It learns
// the successor of each token, (7 token + 3) mod 64. Start it as one process or as the ranks of a job:
//
//   launch --nproc=4 -- residual_network --checkpoint_dir=/tmp/successors
//
// Started again, after any kind of end and on any number of ranks, it continues from the newest step that verifies.
// docs/own_layers.md explains it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/nn/activation.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/embedding.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/norm.h"
#include "fsdp/nn/sequential.h"
#include "fsdp/optim/adamw.h"

ABSL_FLAG(int, steps, 300, "steps to train in all");
ABSL_FLAG(std::string, checkpoint_dir, "", "directory to save in and to resume from (default: nothing is saved)");
ABSL_FLAG(int, checkpoint_every, 50, "steps from one save to the next");

namespace fsdp {
namespace {

constexpr int64_t kTokens = 64, kWidth = 32, kBlocks = 3;
constexpr int64_t kRows = 48;  // per step, on all ranks together

// x + fc2(gelu(fc1(norm(x)))). A layer computes its output and, in backward, the gradient of its input. Linear and
// LayerNorm add up the gradients of their own parameters. Nothing here depends on sharding.
class ResidualBlock final : public Module {
 public:
  ResidualBlock() {
    norm_ = AddChild("norm", std::make_unique<LayerNorm>(kWidth, 1e-5));
    fc1_ = AddChild("fc1", std::make_unique<Linear>(kWidth, 4 * kWidth, Initializer::Normal(0, 0.1f), /*bias=*/true));
    act_ = AddChild("act", std::make_unique<Activation>(ActivationKind::kGeluTanh));
    fc2_ = AddChild("fc2", std::make_unique<Linear>(4 * kWidth, kWidth, Initializer::Normal(0, 0.1f), /*bias=*/true));
  }

  std::string_view type_name() const override { return "ResidualBlock"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor normed, norm_->Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, fc1_->Forward(normed, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor active, act_->Forward(wide, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor branch, fc2_->Forward(active, tape));
    tape.ops().Add(branch, x, branch, tape.stream());  // the sum takes the branch's memory
    return branch;
  }

  // The reverse order of DoForward: each layer finds what it has kept on top of the tape.
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_active, fc2_->Backward(grad_output, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_wide, act_->Backward(grad_active, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_normed, fc1_->Backward(grad_wide, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, norm_->Backward(grad_normed, tape));
    tape.ops().Add(grad_x, grad_output, grad_x, tape.stream());  // x is read twice: by norm and around it
    return grad_x;
  }

  Module* norm_;
  Module* fc1_;
  Module* act_;
  Module* fc2_;
};

// Tokens, int32 [rows] -> scores of each successor [rows, kTokens].
std::unique_ptr<Module> MakeNetwork() {
  auto network = std::make_unique<Sequential>();
  network->Append(std::make_unique<Embedding>(kTokens, kWidth, Initializer::Normal(0, 1)));
  for (int i = 0; i < kBlocks; ++i) network->Append(std::make_unique<ResidualBlock>());
  network->Append(std::make_unique<LayerNorm>(kWidth, 1e-5));
  network->Append(std::make_unique<Linear>(kWidth, kTokens, Initializer::Normal(0, 0.1f)));
  return network;
}

struct Batch {
  Tensor tokens, targets;  // int32 [rows]

  // This rank's rows of a step, the same however many ranks there are.
  static absl::StatusOr<Batch> OfStep(int step, ProcessGroup& group) {
    const int64_t rows = kRows / group.size();
    Batch batch;
    FSDP_ASSIGN_OR_RETURN(batch.tokens, Tensor::Empty(*group.device(), DType::kInt32, {rows}));
    FSDP_ASSIGN_OR_RETURN(batch.targets, Tensor::Empty(*group.device(), DType::kInt32, {rows}));
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token = (step * 5 + group.rank() * rows + row) % kTokens;
      batch.tokens.data_as<int32_t>()[row] = static_cast<int32_t>(token);
      batch.targets.data_as<int32_t>()[row] = static_cast<int32_t>((7 * token + 3) % kTokens);
    }
    return batch;
  }
};

// Forward, backward and update. Returns the loss of this rank's rows.
absl::StatusOr<float> TrainStep(FullyShardedDataParallel& model, Optimizer& optimizer, const Batch& batch) {
  Tape tape = model.NewTape();
  CrossEntropyLoss cross_entropy;
  FSDP_ASSIGN_OR_RETURN(const Tensor scores, model.Forward(batch.tokens, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor loss, cross_entropy.Forward(scores, batch.targets, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, cross_entropy.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
  FSDP_RETURN_IF_ERROR(model.ClipGradNorm(1.0f).status());
  FSDP_RETURN_IF_ERROR(optimizer.Step(model.stream()));
  optimizer.ZeroGrad();
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  return *loss.data_as<float>();
}

const StateKey kStepsDone = StateKey::Extra("steps_done");

absl::Status Save(FullyShardedDataParallel& model, Optimizer& optimizer, int steps_done, ProcessGroup& group) {
  // Overwrites: a step that exists but did not verify is trained and saved again.
  StateDictTypeGuard guard(model, ShardedStateDictConfig{});
  FSDP_ASSIGN_OR_RETURN(StateDict state, model.GetStateDict());
  FSDP_RETURN_IF_ERROR(model.AddOptimStateDict(optimizer, state));
  state.Set(kStepsDone, absl::StrCat(steps_done));
  return SaveCheckpoint(state, absl::GetFlag(FLAGS_checkpoint_dir), steps_done, group, {.overwrite = true}).status();
}

// Returns the number of steps that the newest checkpoint has done; 0 if there is no checkpoint.
absl::StatusOr<int> Restore(FullyShardedDataParallel& model, Optimizer& optimizer, ProcessGroup& group) {
  const absl::StatusOr<std::string> newest = LatestCheckpoint(absl::GetFlag(FLAGS_checkpoint_dir));
  if (absl::IsNotFound(newest.status())) return 0;
  FSDP_RETURN_IF_ERROR(newest.status());
  int steps_done = 0;
  FSDP_RETURN_IF_ERROR(model.Restore(&optimizer, [&](StateDict& wanted) -> absl::Status {
    // steps_done is loaded with the weights, so both are of the same step.
    wanted.Set(kStepsDone, std::string());
    FSDP_RETURN_IF_ERROR(LoadCheckpoint(*newest, wanted, group));
    steps_done = std::atoi(wanted.FindText(kStepsDone)->c_str());
    return absl::OkStatus();
  }));
  return steps_done;
}

absl::Status Train() {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup());
  if (kRows % group->size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(group->size(), " ranks: expected a divisor of ", kRows, " rows"));
  }
  FSDP_ASSIGN_OR_RETURN(
      const auto model,
      FullyShardedDataParallel::Wrap(MakeNetwork(), group, {.auto_wrap_policy = ModuleWrapPolicy<ResidualBlock>()}));
  AdamW optimizer(model->parameters(), {.lr = 1e-2, .weight_decay = 0.01});
  const bool saves = !absl::GetFlag(FLAGS_checkpoint_dir).empty();
  int begin = 0;
  if (saves) {
    FSDP_ASSIGN_OR_RETURN(begin, Restore(*model, optimizer, *group));
  }
  if (group->rank() == 0 && begin > 0) std::printf("%d steps are done\n", begin);
  const int steps = absl::GetFlag(FLAGS_steps), every = absl::GetFlag(FLAGS_checkpoint_every);
  for (int step = begin; step < steps; ++step) {
    FSDP_ASSIGN_OR_RETURN(const Batch batch, Batch::OfStep(step, *group));
    FSDP_ASSIGN_OR_RETURN(const float loss, TrainStep(*model, optimizer, batch));
    if (group->rank() == 0 && (step % 50 == 0 || step + 1 == steps)) {
      std::printf("step %3d  loss %.4f\n", step, loss);
      std::fflush(stdout);
    }
    if (saves && (step + 1) % every == 0) FSDP_RETURN_IF_ERROR(Save(*model, optimizer, step + 1, *group));
  }
  return model->stream().Synchronize();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "residual_network [flags]")) return *exit;
  if (absl::GetFlag(FLAGS_steps) < 1 || absl::GetFlag(FLAGS_checkpoint_every) < 1) {
    std::fprintf(stderr, "residual_network: --steps and --checkpoint_every: expected at least 1\n");
    return kExitUsage;
  }
  const absl::Status status = Train();
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "residual_network: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
