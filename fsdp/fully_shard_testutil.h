// SPDX-License-Identifier: Apache-2.0
//
// For tests of FSDP2: a small tree of layers under FullyShard on ranks that are threads, with its collectives recorded.
// The units are root > 0 (Block) > ..., of sizes that 3 ranks do not divide.
#ifndef FSDP_FSDP_FULLY_SHARD_TESTUTIL_H_
#define FSDP_FSDP_FULLY_SHARD_TESTUTIL_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

constexpr int kFullyShardRows = 2;

// root > 0 (Block) > 0 (3 to 5), 1 (5 to 5); root > 1 (Block) > 0 (5 to 4); root > 2 (4 to 7).
inline std::unique_ptr<TestSequence> MakeTestBlocks() {
  auto root = std::make_unique<TestSequence>();
  TestSequence* block = root->AddSequence("Block");
  block->AddLinear(3, 5);
  block->AddLinear(5, 5);
  root->AddSequence("Block")->AddLinear(5, 4);
  root->AddLinear(4, 7);
  root->AssignNames();
  return root;
}

struct TestFullyShard {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  std::shared_ptr<ProcessGroup> group;  // "world", recorded
  std::shared_ptr<const DeviceMesh> mesh;
  std::unique_ptr<TestSequence> model;
  std::vector<FsdpModule*> blocks;
  FsdpModule* root = nullptr;

  // Over `replicas` x (the rest) ranks; the blocks with `block_options`, then the root with `options`.
  static absl::StatusOr<TestFullyShard> Make(std::shared_ptr<ProcessGroup> group, const FullyShardOptions& options = {},
                                             int replicas = 1) {
    return Make(std::move(group), options, options, replicas);
  }

  static absl::StatusOr<TestFullyShard> Make(std::shared_ptr<ProcessGroup> group, const FullyShardOptions& options,
                                             const FullyShardOptions& block_options, int replicas = 1) {
    TestFullyShard made;
    made.group = std::make_shared<RecordingProcessGroup>(std::move(group), "world", made.log);
    const int ranks = made.group->size();
    if (replicas == 1) {
      FSDP_ASSIGN_OR_RETURN(made.mesh, DeviceMesh::Create(made.group, {ranks}, {"shard"}));
    } else {
      FSDP_ASSIGN_OR_RETURN(made.mesh,
                            DeviceMesh::Create(made.group, {replicas, ranks / replicas}, {"replicate", "shard"}));
    }
    made.model = MakeTestBlocks();
    for (const auto& [name, module] : made.model->NamedModules()) {
      if (module->type_name() != "Block") continue;
      FSDP_ASSIGN_OR_RETURN(FsdpModule * block, FullyShard(*module, made.mesh, block_options));
      made.blocks.push_back(block);
    }
    FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*made.model, made.mesh, options));
    return made;
  }

  Device& device() const { return *group->device(); }

  // Entries of the log with the prefix `prefix`.
  int Count(std::string_view prefix) const { return CountEntries(*log, prefix); }

  // This rank's input in micro-step `step`.
  absl::StatusOr<Tensor> Input(int step = 0) const {
    FSDP_ASSIGN_OR_RETURN(Tensor x, Tensor::Empty(device(), DType::kFloat32, {kFullyShardRows, 3}));
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data_as<float>()[i] = 0.25f * static_cast<float>((group->rank() + 1) * (i - 2) + step);
    }
    return x;
  }

  absl::StatusOr<Tensor> Forward(Tape& tape, int step = 0) const {
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Input(step));
    return model->Forward(x, tape);
  }

  // The output's gradient is rank + 1 everywhere: the last bias gets kFullyShardRows * (rank + 1).
  absl::Status Backward(const Tensor& output, Tape& tape) const {
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Tensor::Empty(device(), output.dtype(), output.shape()));
    FSDP_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Empty(device(), DType::kFloat32, output.shape()));
    std::fill_n(ones.data_as<float>(), ones.numel(), static_cast<float>(group->rank() + 1));
    device().ops().CastDivide(ones, grad, 1, tape.stream());
    FSDP_RETURN_IF_ERROR(model->Backward(grad, tape).status());
    return tape.stream().Synchronize();
  }

  absl::Status ForwardAndBackward(int step = 0) const {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor y, Forward(tape, step));
    return Backward(y, tape);
  }

  // Forgets gradients, as an optimizer does after its step.
  absl::Status ZeroGrad() const {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    for (ShardedParameter* parameter : parameters) parameter->has_grad = false;
    return absl::OkStatus();
  }

  // This rank's gradients, by name, of the parameters that have one.
  absl::StatusOr<std::map<std::string, std::vector<float>>> Gradients() const {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    std::map<std::string, std::vector<float>> gradients;
    for (const ShardedParameter* parameter : parameters) {
      const float* grad = parameter->grad.data_as<float>();
      if (parameter->has_grad) gradients[parameter->fqn].assign(grad, grad + parameter->grad.numel());
    }
    return gradients;
  }
};

// `rank_main` on `ranks` ranks with that model.
inline absl::Status RunFullyShard(int ranks, const FullyShardOptions& options,
                                  const std::function<absl::Status(TestFullyShard& test)>& rank_main,
                                  int replicas = 1) {
  return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(std::move(group), options, replicas));
    return rank_main(test);
  });
}

using Gradients = std::map<std::string, std::vector<float>>;

// This rank's gradients of one step from the same start.
inline absl::StatusOr<Gradients> StepWith(std::shared_ptr<ProcessGroup> group, const FullyShardOptions& options,
                                          const std::function<absl::Status(TestFullyShard&)>& set, int replicas = 1) {
  FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(std::move(group), options, replicas));
  if (set != nullptr) FSDP_RETURN_IF_ERROR(set(test));
  FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
  return test.Gradients();
}

}  // namespace fsdp

#endif  // FSDP_FSDP_FULLY_SHARD_TESTUTIL_H_
