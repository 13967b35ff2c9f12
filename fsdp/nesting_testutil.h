// SPDX-License-Identifier: Apache-2.0
//
// For tests of wrapping by hand: the tree of test_fully_shard.h as a FSDP1 model, trained on ranks that are threads.
#ifndef FSDP_FSDP_NESTING_TESTUTIL_H_
#define FSDP_FSDP_NESTING_TESTUTIL_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/optim/adamw.h"

namespace fsdp {

// The module at `path` below `root`; null if there is no such module.
inline Module* ModuleAt(Module& root, const std::string& path) {
  for (const auto& [name, module] : root.NamedModules()) {
    if (name == path) return module;
  }
  return nullptr;
}

using Mark = std::pair<std::string, UnitOverrides>;

inline absl::Status WrapAll(Module& root, const std::vector<Mark>& marks) {
  for (const auto& [path, overrides] : marks) FSDP_RETURN_IF_ERROR(WrapModule(*ModuleAt(root, path), overrides));
  return absl::OkStatus();
}

// MakeTestBlocks with these marks, taken by Wrap.
inline absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> WrapBlocks(std::shared_ptr<ProcessGroup> group,
                                                                            const std::vector<Mark>& marks,
                                                                            const FsdpOptions& options) {
  std::unique_ptr<TestSequence> root = MakeTestBlocks();
  FSDP_RETURN_IF_ERROR(WrapAll(*root, marks));
  return FullyShardedDataParallel::Wrap(std::move(root), std::move(group), options);
}

// One forward and backward of a batch that differs by `step` and rank; the output's gradient is rank + 1 everywhere.
inline absl::Status ForwardAndBackward(FullyShardedDataParallel& model, int step) {
  const int rank = model.group().rank();
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model.device(), DType::kFloat32, {kFullyShardRows, 3}));
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data_as<float>()[i] = 0.25f * static_cast<float>((rank + 1) * (i - 2) + step);
  }
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Empty(model.device(), DType::kFloat32, y.shape()));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, Tensor::Empty(model.device(), y.dtype(), y.shape()));
  std::fill_n(ones.data_as<float>(), ones.numel(), static_cast<float>(rank + 1));
  model.device().ops().CastDivide(ones, grad, 1, model.stream());
  FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
  return model.stream().Synchronize();
}

// Every parameter, whole, after three steps of AdamW that clip.
inline absl::StatusOr<Gradients> TrainedValues(FullyShardedDataParallel& model) {
  AdamW optimizer(model.parameters(), {.lr = 1e-2, .weight_decay = 0.1});
  for (int step = 0; step < 3; ++step) {
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(model, step));
    FSDP_RETURN_IF_ERROR(model.ClipGradNorm(0.5f).status());
    FSDP_RETURN_IF_ERROR(optimizer.Step(model.stream()));
    optimizer.ZeroGrad();
  }
  FSDP_ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  Gradients values;
  for (const auto& [key, value] : state.entries()) {
    const Tensor& whole = std::get<ShardedTensor>(value).shards.at(0).data;
    values[key.fqn].assign(whole.data_as<float>(), whole.data_as<float>() + whole.numel());
  }
  return values;
}

}  // namespace fsdp

#endif  // FSDP_FSDP_NESTING_TESTUTIL_H_
