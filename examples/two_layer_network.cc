// SPDX-License-Identifier: Apache-2.0
//
// Sharding without nn/: a network of two layers, written by hand on plain buffers, whose weights and gradients are
// sharded over ranks by six calls. A framework with its own layers would make the first four calls in its hooks:
//
//   Unshard    before a layer computes: its whole weights, gathered from all ranks
//   Gradients  before its backward: a zeroed buffer for its whole gradients
//   Reshard    after its backward: gives up the whole weights
//   Reduce     after its backward: averages the gradients over the ranks; each keeps its shard
//
//   FinishBackward, FinishStep   before and after the optimizer's step: they order it with communication
//
// It learns y = x0 * x1 and prints the loss. With --checkpoint_dir it saves. Started again, after any kind of end and
// on any number of ranks, it continues from the newest step that verifies.
//
//   bazel run //examples:two_layer_network -- --ranks=3 --checkpoint_dir=/tmp/product
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/manual_units.h"
#include "fsdp/optim/adamw.h"

ABSL_FLAG(int, ranks, 3, "threads that share the work: 1, 2, 3, 4, 6, 8, 12 or 24");
ABSL_FLAG(int, steps, 400, "steps to train in all");
ABSL_FLAG(std::string, checkpoint_dir, "", "directory to save in and to resume from (default: nothing is saved)");
ABSL_FLAG(int, checkpoint_every, 50, "steps from one save to the next");

namespace fsdp {
namespace {

constexpr int kRows = 24, kHidden = 33;  // rows per step, on all ranks together; few numbers of ranks divide 33

// The buffers of one rank's computation in a step.
struct Rows {
  int count = 0;
  std::vector<float> x, hidden, dy;  // [count, 2], [count, kHidden], [count]

  // This rank's rows of a step, the same however many ranks there are.
  static Rows OfStep(int step, int rank, int ranks) {
    std::mt19937 random(step);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> all(2 * kRows);
    for (float& value : all) value = uniform(random);
    Rows rows;
    rows.count = kRows / ranks;
    rows.x.assign(all.begin() + 2 * rank * rows.count, all.begin() + 2 * (rank + 1) * rows.count);
    rows.hidden.resize(rows.count * kHidden);
    rows.dy.resize(rows.count);
    return rows;
  }
};

// hidden = relu(x w1 + b1), y = hidden w2; returns the mean of (y - x0 x1)^2 and leaves its derivative in dy.
float Forward(const float* w1, const float* b1, const float* w2, Rows& rows) {
  float loss = 0;
  for (int r = 0; r < rows.count; ++r) {
    const float x0 = rows.x[2 * r], x1 = rows.x[2 * r + 1];
    float y = 0;
    for (int h = 0; h < kHidden; ++h) {
      float& hidden = rows.hidden[r * kHidden + h];
      hidden = std::max(0.0f, x0 * w1[h] + x1 * w1[kHidden + h] + b1[h]);
      y += hidden * w2[h];
    }
    rows.dy[r] = 2 * (y - x0 * x1) / rows.count;
    loss += (y - x0 * x1) * (y - x0 * x1) / rows.count;
  }
  return loss;
}

void Backward(const Rows& rows, const float* w2, float* dw1, float* db1, float* dw2) {
  for (int r = 0; r < rows.count; ++r) {
    for (int h = 0; h < kHidden; ++h) {
      const float hidden = rows.hidden[r * kHidden + h];
      dw2[h] += rows.dy[r] * hidden;
      if (hidden <= 0) continue;
      dw1[h] += rows.dy[r] * w2[h] * rows.x[2 * r];
      dw1[kHidden + h] += rows.dy[r] * w2[h] * rows.x[2 * r + 1];
      db1[h] += rows.dy[r] * w2[h];
    }
  }
}

// Forward and backward of one step; afterwards the optimizer may step. Returns the loss of this rank's rows.
absl::StatusOr<float> ComputeGradients(ManualUnits& units, Rows& rows) {
  FSDP_ASSIGN_OR_RETURN(const auto first, units.Unshard(0));
  FSDP_ASSIGN_OR_RETURN(const auto second, units.Unshard(1));
  // The all-gathers are stream work. This network computes on the host without a stream, so it waits for them here.
  FSDP_RETURN_IF_ERROR(units.stream().Synchronize());
  const float* const w2 = second[0].data_as<float>();
  const float loss = Forward(first[0].data_as<float>(), first[1].data_as<float>(), w2, rows);

  FSDP_ASSIGN_OR_RETURN(const auto second_grads, units.Gradients(1));
  FSDP_ASSIGN_OR_RETURN(const auto first_grads, units.Gradients(0));
  FSDP_RETURN_IF_ERROR(units.stream().Synchronize());
  Backward(rows, w2, first_grads[0].data_as<float>(), first_grads[1].data_as<float>(),
           second_grads[0].data_as<float>());
  // In the order of backward, which must be the same on every rank: Reduce is collective.
  for (const int unit : {1, 0}) {
    FSDP_RETURN_IF_ERROR(units.Reshard(unit));
    FSDP_RETURN_IF_ERROR(units.Reduce(unit));
  }
  FSDP_RETURN_IF_ERROR(units.FinishBackward());
  return loss;
}

const StateKey kStepsDone = StateKey::Extra("steps_done");

absl::Status Save(ManualUnits& units, Optimizer& optimizer, int steps_done, ProcessGroup& group) {
  units.set_state_dict_settings(ShardedStateDictConfig{});
  FSDP_ASSIGN_OR_RETURN(StateDict state, units.GetStateDict());
  FSDP_RETURN_IF_ERROR(units.AddOptimStateDict(optimizer, state));
  state.Set(kStepsDone, absl::StrCat(steps_done));
  return SaveCheckpoint(state, absl::GetFlag(FLAGS_checkpoint_dir), steps_done, group, {.overwrite = true}).status();
}

// Returns the number of steps that the newest checkpoint has done; 0 if there is no checkpoint.
absl::StatusOr<int> Restore(ManualUnits& units, Optimizer& optimizer, ProcessGroup& group) {
  const absl::StatusOr<std::string> newest = LatestCheckpoint(absl::GetFlag(FLAGS_checkpoint_dir));
  if (absl::IsNotFound(newest.status())) return 0;
  FSDP_RETURN_IF_ERROR(newest.status());
  int steps_done = 0;
  const auto load = [&](StateDict& wanted) -> absl::Status {
    wanted.Set(kStepsDone, std::string());
    FSDP_RETURN_IF_ERROR(LoadCheckpoint(*newest, wanted, group));
    steps_done = std::atoi(wanted.FindText(kStepsDone)->c_str());
    return absl::OkStatus();
  };
  FSDP_RETURN_IF_ERROR(units.Restore(&optimizer, load).status());
  return steps_done;
}

// The mean over ranks of a number that each rank has.
absl::StatusOr<float> MeanOf(float mine, ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGatherObject(absl::StrCat(mine)));
  return std::accumulate(all.begin(), all.end(), 0.0f,
                         [](float sum, const std::string& one) { return sum + std::strtof(one.c_str(), nullptr); }) /
         all.size();
}

absl::Status Train(std::shared_ptr<ProcessGroup> group) {
  FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group,
                                                        {{"first",
                                                          {{"w1", {2, kHidden}, Initializer::Normal(0, 0.7f)},
                                                           {"b1", {kHidden}, Initializer::Normal(0, 0.3f)}}},
                                                         {"second", {{"w2", {kHidden}, Initializer::Normal(0, 0.3f)}}}},
                                                        /*units_at_once=*/2));
  AdamW optimizer(units->parameters(), {.lr = 1e-2, .weight_decay = 0});
  const bool saves = !absl::GetFlag(FLAGS_checkpoint_dir).empty();
  int begin = 0;
  if (saves) {
    FSDP_ASSIGN_OR_RETURN(begin, Restore(*units, optimizer, *group));
  }
  const int steps = absl::GetFlag(FLAGS_steps), every = absl::GetFlag(FLAGS_checkpoint_every);
  if (group->rank() == 0 && begin > 0) std::printf("%d steps are done\n", begin);
  for (int step = begin; step < steps; ++step) {
    Rows rows = Rows::OfStep(step, group->rank(), group->size());
    FSDP_ASSIGN_OR_RETURN(const float mine, ComputeGradients(*units, rows));
    FSDP_RETURN_IF_ERROR(units->ClipGradNorm(1.0f).status());
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    optimizer.ZeroGrad();
    FSDP_RETURN_IF_ERROR(units->FinishStep());
    FSDP_ASSIGN_OR_RETURN(const float loss, MeanOf(mine, *group));
    if (group->rank() == 0 && (step % 50 == 0 || step + 1 == steps)) {
      std::printf("step %3d  loss %.6f\n", step, loss);
      std::fflush(stdout);
    }
    if (saves && (step + 1) % every == 0) FSDP_RETURN_IF_ERROR(Save(*units, optimizer, step + 1, *group));
  }
  return units->stream().Synchronize();
}

absl::Status CheckFlags() {
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 1 || kRows % ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks=", ranks, ": expected a divisor of ", kRows, " rows"));
  }
  if (absl::GetFlag(FLAGS_steps) < 1) return absl::InvalidArgumentError("--steps: expected at least 1");
  if (absl::GetFlag(FLAGS_checkpoint_every) < 1) {
    return absl::InvalidArgumentError("--checkpoint_every: expected at least 1");
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "two_layer_network [flags]")) return *exit;
  absl::Status status = CheckFlags();
  const int wrong = status.ok() ? kExitFailed : kExitUsage;
  if (status.ok()) status = RunRanks(absl::GetFlag(FLAGS_ranks), Train);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "two_layer_network: %s\n", std::string(status.message()).c_str());
  return wrong;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
