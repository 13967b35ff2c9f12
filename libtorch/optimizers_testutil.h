// SPDX-License-Identifier: Apache-2.0
//
// For tests of TorchOptimizer on any device: optimizers of torch::optim, a sharded training with one of them, and its
// continuation from checkpoints on other numbers of ranks.
#ifndef FSDP_LIBTORCH_OPTIMIZERS_TESTUTIL_H_
#define FSDP_LIBTORCH_OPTIMIZERS_TESTUTIL_H_

#include <torch/optim.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/libtorch/torch_training_testutil.h"

namespace fsdp {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& tensors)>;

template <typename Optimizer, typename Options>
MakeOptimizer OptimizerMaker(const Options& options) {
  return [options](const std::vector<at::Tensor>& tensors) { return std::make_unique<Optimizer>(tensors, options); };
}

// One optimizer of each class that TorchOptimizer takes, by name, with options that give it all of its state.
const std::vector<std::pair<std::string, MakeOptimizer>>& TestOptimizers();

// The model "tied_transformer" on the group's device.
struct OptimizerTraining {
  TestModel model;
  std::unique_ptr<ShardedModule> sharded;
  std::unique_ptr<TorchOptimizer> optimizer;
  std::optional<float> max_norm;  // of gradients; none: they are not clipped

  static absl::StatusOr<OptimizerTraining> Create(std::shared_ptr<ProcessGroup> group, const MakeOptimizer& make,
                                                  const TestSharding& sharding = {});
  absl::Status Step(int step);
};

struct ResumedTraining {
  std::string what;       // form of state dict and number of ranks
  int ranks = 0;          // that continued
  double difference = 0;  // of the values from an uninterrupted training
};

// Trains two steps on two ranks, saves below `root` in each form of state dict, and trains a third step. Then restores
// each form on one, two and four ranks, which had other values, and trains the third step there.
absl::StatusOr<std::vector<ResumedTraining>> ResumeOnOtherRanks(const MakeOptimizer& make, const std::string& root,
                                                                std::optional<float> max_norm,
                                                                const RunTestRanks& run = RunHostRanks);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_OPTIMIZERS_TESTUTIL_H_
