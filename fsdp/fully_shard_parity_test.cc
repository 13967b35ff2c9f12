// SPDX-License-Identifier: Apache-2.0
//
// FullyShard on n ranks against n micro-batches in one process: equal in every bit. The reference adds the gradients of
// the micro-batches in rank order, block by block if ranks are a grid, and divides each sum once.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 6;
constexpr int kRows = 2;
constexpr int kSeqLen = 5;
constexpr uint64_t kSeed = 11;
constexpr AdamWOptions kHyperparameters{.lr = 1e-2, .weight_decay = 0.1};

using Weights = std::map<std::string, std::vector<float>>;

absl::Status ComputeGradients(Module& module, int step, int rank, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(tape.device(), DType::kInt32, {kRows, kSeqLen}));
  FSDP_ASSIGN_OR_RETURN(const Tensor targets, Tensor::Empty(tape.device(), DType::kInt32, {kRows * kSeqLen}));
  for (int i = 0; i < kRows * kSeqLen; ++i) {
    const int at = (step * 7 + rank) * 31 + i;
    tokens.data_as<int32_t>()[i] = at * at % 29;
    targets.data_as<int32_t>()[i] = (at + 1) * (at + 1) % 29;
  }
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, module.Forward(tokens, tape));
  FSDP_RETURN_IF_ERROR(loss.Forward(logits, targets, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(1.0f, tape));
  return module.Backward(grad_logits, tape).status();
}

// One process without sharding.
absl::StatusOr<Weights> TrainReference(int replicas, int shards) {
  const std::shared_ptr<Device> device = CreateHostDevice();
  const TensorOps& ops = device->ops();
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> layer_ops, LayerOpsFor(*device));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("reference"));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  FSDP_RETURN_IF_ERROR(module->Materialize(*device, kSeed));
  FSDP_ASSIGN_OR_RETURN(const auto parameters, UnshardedParameters(*module, *device));
  std::vector<ShardedParameter*> pointers;
  std::vector<Tensor> block, total;  // sums over a block of ranks, and of their means
  for (const auto& parameter : parameters) {
    pointers.push_back(parameter.get());
    for (std::vector<Tensor>* sums : {&block, &total}) {
      FSDP_ASSIGN_OR_RETURN(Tensor sum, Tensor::Empty(*device, DType::kFloat32, parameter->grad.shape()));
      sums->push_back(std::move(sum));
    }
  }
  AdamW optimizer(AdamW::DecayMatricesOnly(pointers, kHyperparameters));
  for (int step = 0; step < kSteps; ++step) {
    for (const Tensor& sum : total) ops.Zero(sum, *stream);
    for (int replica = 0; replica < replicas; ++replica) {
      for (const Tensor& sum : block) ops.Zero(sum, *stream);
      for (int shard = 0; shard < shards; ++shard) {
        for (ShardedParameter* p : pointers) ops.Zero(p->grad, *stream);
        Tape tape(*stream, *layer_ops);
        FSDP_RETURN_IF_ERROR(ComputeGradients(*module, step, replica * shards + shard, tape));
        for (size_t i = 0; i < pointers.size(); ++i) ops.Accumulate(pointers[i]->grad, block[i], *stream);
      }
      for (size_t i = 0; i < pointers.size(); ++i) {
        ops.CastDivide(block[i], block[i], shards, *stream);
        ops.Accumulate(block[i], total[i], *stream);
      }
    }
    for (size_t i = 0; i < pointers.size(); ++i) ops.CastDivide(total[i], pointers[i]->grad, replicas, *stream);
    FSDP_RETURN_IF_ERROR(optimizer.Step(*stream));
  }
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  Weights weights;
  for (const ShardedParameter* p : pointers) {
    weights[p->fqn].assign(p->data.data_as<float>(), p->data.data_as<float>() + p->data.numel());
  }
  return weights;
}

struct Mesh {
  int replicas;
  int shards;
};

// Applies FullyShard to `model`, outermost last.
using Apply = absl::Status (*)(Module& model, const std::shared_ptr<const DeviceMesh>& mesh,
                               const FullyShardOptions& options);

absl::Status ApplyToBlocks(Module& model, const std::shared_ptr<const DeviceMesh>& mesh,
                           const FullyShardOptions& options) {
  for (const auto& [name, module] : model.NamedModules()) {
    if (dynamic_cast<Gpt2Block*>(module) != nullptr) FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
  }
  return FullyShard(model, mesh, options).status();
}

// The two blocks as one unit, and a unit within one of them.
absl::Status ApplyToGroup(Module& model, const std::shared_ptr<const DeviceMesh>& mesh,
                          const FullyShardOptions& options) {
  std::vector<Module*> blocks;
  for (const auto& [name, module] : model.NamedModules()) {
    if (dynamic_cast<Gpt2Block*>(module) != nullptr) blocks.push_back(module);
    if (name == "transformer.h.1.mlp") FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(blocks, mesh, options).status());
  return FullyShard(model, mesh, options).status();
}

absl::Status TrainRank(const Mesh& shape, Apply apply, const FullyShardOptions& options,
                       std::shared_ptr<ProcessGroup> group, std::mutex& mutex, Weights& weights) {
  const std::vector<int> sizes =
      shape.replicas == 1 ? std::vector<int>{shape.shards} : std::vector<int>{shape.replicas, shape.shards};
  const std::vector<std::string> names =
      shape.replicas == 1 ? std::vector<std::string>{"shard"} : std::vector<std::string>{"replicate", "shard"};
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, DeviceMesh::Create(group, sizes, names));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, MakeGpt2(OddGpt2Config()));
  FSDP_RETURN_IF_ERROR(apply(*model, mesh, options));
  FsdpModule& root = *FsdpModule::Of(*model);
  FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root.parameters());
  AdamW optimizer(AdamW::DecayMatricesOnly(parameters, kHyperparameters));
  for (int step = 0; step < kSteps; ++step) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root.NewTape());
    FSDP_RETURN_IF_ERROR(ComputeGradients(*model, step, group->rank(), tape));
    FSDP_RETURN_IF_ERROR(optimizer.Step(tape.stream()));
    optimizer.ZeroGrad();
  }
  FSDP_ASSIGN_OR_RETURN(const StateDict state, root.GetStateDict());
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [key, value] : state.entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    std::vector<float>& whole = weights[key.fqn];
    whole.resize(tensor.shape.numel());
    for (const ShardedTensor::Shard& shard : tensor.shards) {
      std::memcpy(whole.data() + shard.interval.begin, shard.data.data(), shard.data.nbytes());
    }
  }
  return absl::OkStatus();
}

class FullyShardParityTest : public testing::TestWithParam<Mesh> {
 protected:
  void ExpectParity(Apply apply, const FullyShardOptions& options) {
    static std::map<std::pair<int, int>, Weights>& references = *new std::map<std::pair<int, int>, Weights>();
    const auto [replicas, shards] = GetParam();
    Weights& reference = references[{replicas, shards}];
    if (reference.empty()) {
      ASSERT_OK_AND_ASSIGN(reference, TrainReference(replicas, shards));
    }
    std::mutex mutex;
    Weights weights;
    ASSERT_OK(RunRanks(replicas * shards, [&](std::shared_ptr<ProcessGroup> group) {
      return TrainRank(GetParam(), apply, options, std::move(group), mutex, weights);
    }));
    ASSERT_EQ(weights.size(), reference.size());
    for (const auto& [name, values] : reference) EXPECT_EQ(weights[name], values) << name;
  }
};

TEST_P(FullyShardParityTest, BlocksEqualOneProcessBitForBit) { ExpectParity(ApplyToBlocks, {.init_seed = kSeed}); }

TEST_P(FullyShardParityTest, ParametersMayStayOrGoAfterForward) {
  ExpectParity(ApplyToBlocks, {.reshard_after_forward = true, .init_seed = kSeed});
  ExpectParity(ApplyToBlocks, {.reshard_after_forward = false, .init_seed = kSeed});
}

TEST_P(FullyShardParityTest, ParametersMayShrinkToSmallerGroups) {
  const int shards = GetParam().shards;
  for (int k = 1; k <= shards; ++k) {
    if (shards % k == 0) ExpectParity(ApplyToBlocks, {.reshard_after_forward = k, .init_seed = kSeed});
  }
}

TEST_P(FullyShardParityTest, ShardsMayLiveInHostMemory) {
  for (const bool pin_memory : {true, false}) {
    ExpectParity(ApplyToBlocks, {.offload_policy = CpuOffloadPolicy{.pin_memory = pin_memory}, .init_seed = kSeed});
  }
}

TEST_P(FullyShardParityTest, SeveralModulesMayBeOneUnit) { ExpectParity(ApplyToGroup, {.init_seed = kSeed}); }

INSTANTIATE_TEST_SUITE_P(Meshes, FullyShardParityTest,
                         testing::Values(Mesh{1, 1}, Mesh{1, 2}, Mesh{1, 3}, Mesh{1, 4}, Mesh{1, 7}, Mesh{2, 2},
                                         Mesh{2, 3}, Mesh{3, 1}),
                         [](const auto& mesh) {
                           return std::to_string(mesh.param.replicas) + "x" + std::to_string(mesh.param.shards);
                         });

}  // namespace
}  // namespace fsdp
