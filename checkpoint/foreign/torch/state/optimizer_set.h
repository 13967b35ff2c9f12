// SPDX-License-Identifier: Apache-2.0
//
// OptimizerSet: all optimizers of a file, read into one state. Our state dicts have one optimizer, so the groups of
// several become one list, and each group has a member "optimizer", the branch that it comes from. Each optimizer
// belongs to the model that has its parameters: a generator's to the generator. Several that go by id over one model
// are read as the groups of one, since their shapes together allow fewer choices. Pure, except for options.read.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_SET_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_SET_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Of more models than this an optimizer has to be all models': a dict for each of many modules is one model.
inline constexpr size_t kMostModels = 16;

struct FoundOptimizer {
  std::string branch = {};  // the keys on its path, joined by dots
  TorchNode node = {};      // NestedOptimizer
  std::string prefix = {};  // TensorRole::prefix; empty: not given
  std::string reason = {};  // why its parameters cannot be identified, after ReadOptimizers
};

struct OptimizerSet {
  std::string param_groups;            // empty without any
  std::vector<FoundOptimizer> unread;  // those whose parameters cannot be identified, unchanged
};

// `scopes`: one for each model of the file. `model` and `sink` as for ReadTorchOptimizer, whose errors it returns.
absl::StatusOr<OptimizerSet> ReadOptimizers(std::vector<FoundOptimizer> optimizers,
                                            const std::vector<ParameterScope>& scopes, const TorchLeafTypes& tensors,
                                            const StateDict& model, const TorchStateOptions& options,
                                            const TorchOptimizerSink& sink);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_SET_H_
