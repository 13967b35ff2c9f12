// SPDX-License-Identifier: Apache-2.0
//
// Sharding without nn/: a network of two layers, written by hand on plain buffers, whose weights and gradients are
// sharded over ranks by six calls. A framework with layers of its own would make the first four from its hooks:
//
//   Unshard    before a layer computes: its whole weights, gathered from all ranks
//   Gradients  before its backward: a zeroed buffer for its whole gradients
//   Reshard    after its backward: gives up the whole weights
//   Reduce     after its backward: averages the gradients over the ranks; each keeps its shard
//
//   FinishBackward, FinishStep   before and after the optimizer's step, which is ordered with communication by them
//
// It learns y = x0 * x1 and prints the loss.
//
//   bazel run //examples:two_layer_network
#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>
#include <vector>

#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/manual_units.h"
#include "fsdp/optim/adamw.h"

namespace {

constexpr int kRanks = 3, kRows = 16, kHidden = 33, kSteps = 400;  // no size is a multiple of the ranks

// hidden = relu(x w1 + b1), y = hidden w2
void Forward(const std::vector<float>& x, const float* w1, const float* b1, const float* w2, std::vector<float>& hidden,
             std::vector<float>& y) {
  for (int r = 0; r < kRows; ++r) {
    y[r] = 0;
    for (int h = 0; h < kHidden; ++h) {
      hidden[r * kHidden + h] = std::max(0.0f, x[2 * r] * w1[h] + x[2 * r + 1] * w1[kHidden + h] + b1[h]);
      y[r] += hidden[r * kHidden + h] * w2[h];
    }
  }
}

absl::Status Train(std::shared_ptr<fsdp::ProcessGroup> group) {
  using fsdp::Initializer;
  FSDP_ASSIGN_OR_RETURN(
      auto units,
      fsdp::ManualUnits::Create(
          group,
          {{"first",
            {{"w1", {2, kHidden}, Initializer::Normal(0, 0.7f)}, {"b1", {kHidden}, Initializer::Normal(0, 0.3f)}}},
           {"second", {{"w2", {kHidden}, Initializer::Normal(0, 0.3f)}}}},
          /*units_at_once=*/2));
  fsdp::AdamW optimizer(units->parameters(), {.lr = 1e-2, .weight_decay = 0});
  std::mt19937 random(group->rank());
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(2 * kRows), hidden(kRows * kHidden), y(kRows), dy(kRows);
  for (int step = 0; step < kSteps; ++step) {
    for (float& value : x) value = uniform(random);

    FSDP_ASSIGN_OR_RETURN(const auto first, units->Unshard(0));
    FSDP_ASSIGN_OR_RETURN(const auto second, units->Unshard(1));
    // The all-gathers are stream work. This network computes on the host without a stream, so it waits for them here.
    FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
    const float *w1 = first[0].data_as<float>(), *b1 = first[1].data_as<float>(), *w2 = second[0].data_as<float>();
    Forward(x, w1, b1, w2, hidden, y);
    float loss = 0;
    for (int r = 0; r < kRows; ++r) {
      dy[r] = 2 * (y[r] - x[2 * r] * x[2 * r + 1]) / kRows;
      loss += dy[r] * dy[r] * kRows / 4;
    }

    FSDP_ASSIGN_OR_RETURN(const auto second_grads, units->Gradients(1));
    FSDP_ASSIGN_OR_RETURN(const auto first_grads, units->Gradients(0));
    FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
    float *dw1 = first_grads[0].data_as<float>(), *db1 = first_grads[1].data_as<float>();
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < kHidden; ++h) {
        second_grads[0].data_as<float>()[h] += dy[r] * hidden[r * kHidden + h];
        if (hidden[r * kHidden + h] <= 0) continue;
        dw1[h] += dy[r] * w2[h] * x[2 * r];
        dw1[kHidden + h] += dy[r] * w2[h] * x[2 * r + 1];
        db1[h] += dy[r] * w2[h];
      }
    }
    for (const int unit : {1, 0}) {
      FSDP_RETURN_IF_ERROR(units->Reshard(unit));
      FSDP_RETURN_IF_ERROR(units->Reduce(unit));
    }
    units->FinishBackward();
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    optimizer.ZeroGrad();
    units->FinishStep();
    if (group->rank() == 0 && step % 50 == 0) std::printf("step %3d  loss %.5f\n", step, loss);
  }
  return units->stream().Synchronize();
}

}  // namespace

int main(int argc, char** argv) {
  if (const std::optional<int> exit = fsdp::ParseFlags(argc, argv, "two_layer_network")) return *exit;
  const absl::Status status = fsdp::RunRanks(kRanks, Train);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? fsdp::kExitDone : fsdp::kExitFailed;
}
