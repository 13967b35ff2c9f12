// SPDX-License-Identifier: Apache-2.0
//
// FSDP on n ranks against n micro-batches in one process without it: equal in every bit, since both add in rank order.
// The reference computes each micro-batch's gradient into a zeroed buffer, divides it by the pre-divide factor, adds in
// rank order, and divides by the post-divide factor.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/run_ranks.h"
#include "fsdp/divide_factors.h"
#include "fsdp/fsdp.h"
#include "fsdp/test_model.h"
#include "gtest/gtest.h"
#include "models/gpt2.h"
#include "nn/cross_entropy_loss.h"
#include "nn/device_layer_ops.h"
#include "optim/adamw.h"
#include "tensor/host_device.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

constexpr int kSteps = 20;
constexpr int kRows = 2;
constexpr int kSeqLen = 5;
constexpr uint64_t kSeed = 11;

using Weights = std::map<std::string, std::vector<float>>;

// Tokens and targets of one rank's rows in one step.
std::pair<Tensor, Tensor> BatchOf(Device& device, int step, int rank) {
  Tensor tokens = *Tensor::Empty(device, DType::kInt32, {kRows, kSeqLen});
  Tensor targets = *Tensor::Empty(device, DType::kInt32, {kRows * kSeqLen});
  for (int i = 0; i < kRows * kSeqLen; ++i) {
    const int at = (step * 7 + rank) * 31 + i;
    tokens.data_as<int32_t>()[i] = at * at % 29;
    targets.data_as<int32_t>()[i] = (at + 1) * (at + 1) % 29;
  }
  return {tokens, targets};
}

AdamWOptions Hyperparameters() { return {.lr = 1e-2, .weight_decay = 0.1}; }

absl::Status ComputeGradients(Module& module, const std::pair<Tensor, Tensor>& batch, Tape& tape) {
  CrossEntropyLoss loss;
  ASSIGN_OR_RETURN(const Tensor logits, module.Forward(batch.first, tape));
  RETURN_IF_ERROR(loss.Forward(logits, batch.second, tape).status());
  ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(1.0f, tape));
  return module.Backward(grad_logits, tape).status();
}

// One process, no sharding.
absl::StatusOr<Weights> TrainReference(int world_size) {
  const std::shared_ptr<Device> device = CreateHostDevice();
  const TensorOps& ops = device->ops();
  ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> layer_ops, LayerOpsFor(*device));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("reference"));
  ASSIGN_OR_RETURN(const std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  module->AssignNames();
  RETURN_IF_ERROR(module->Materialize(*device, kSeed));
  ASSIGN_OR_RETURN(const auto parameters, WholeParameters(*module, *device));
  std::vector<ShardedParameter*> pointers;
  for (const auto& parameter : parameters) pointers.push_back(parameter.get());
  AdamW optimizer(AdamW::DecayMatricesOnly(pointers, Hyperparameters()));
  const DivideFactors factors = GradientDivideFactors(world_size);

  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> sums;
    for (int rank = 0; rank < world_size; ++rank) {
      for (ShardedParameter* p : pointers) ops.Zero(p->grad, *stream);
      Tape tape(*stream, *layer_ops);
      RETURN_IF_ERROR(ComputeGradients(*module, BatchOf(*device, step, rank), tape));
      for (size_t i = 0; i < pointers.size(); ++i) {
        ops.CastDivide(pointers[i]->grad, pointers[i]->grad, factors.pre, *stream);
        if (rank == 0) {
          ASSIGN_OR_RETURN(Tensor sum, Tensor::Empty(*device, DType::kFloat32, pointers[i]->grad.shape()));
          ops.CastDivide(pointers[i]->grad, sum, 1, *stream);
          sums.push_back(sum);
        } else {
          ops.Accumulate(pointers[i]->grad, sums[i], *stream);
        }
      }
    }
    for (size_t i = 0; i < pointers.size(); ++i) {
      ops.CastDivide(sums[i], pointers[i]->grad, factors.post, *stream);
      pointers[i]->has_grad = true;
    }
    RETURN_IF_ERROR(optimizer.Step(*stream));
  }
  RETURN_IF_ERROR(stream->Synchronize());
  Weights weights;
  for (const ShardedParameter* p : pointers) {
    weights[p->fqn].assign(p->data.data_as<float>(), p->data.data_as<float>() + p->data.numel());
  }
  return weights;
}

// The same on `world_size` ranks; every rank's FULL state dict must be the same, so rank 0's is returned.
absl::StatusOr<Weights> TrainSharded(int world_size, const FsdpOptions& options) {
  Weights weights;
  RETURN_IF_ERROR(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    AdamW optimizer(AdamW::DecayMatricesOnly(model->parameters(), Hyperparameters()));
    for (int step = 0; step < kSteps; ++step) {
      Tape tape = model->NewTape();
      RETURN_IF_ERROR(ComputeGradients(model->module(), BatchOf(model->device(), step, group->rank()), tape));
      RETURN_IF_ERROR(optimizer.Step(model->stream()));
      optimizer.ZeroGrad();
    }
    ASSIGN_OR_RETURN(const StateDict state, model->GetStateDict());
    if (group->rank() != 0) return absl::OkStatus();
    for (const auto& [key, value] : state.entries()) {
      const Tensor& data = std::get<ShardedTensor>(value).shards.at(0).data;
      weights[key.fqn].assign(data.data_as<float>(), data.data_as<float>() + data.numel());
    }
    return absl::OkStatus();
  }));
  return weights;
}

void ExpectSameBits(const Weights& ours, const Weights& reference) {
  ASSERT_EQ(ours.size(), reference.size());
  for (const auto& [name, values] : reference) {
    ASSERT_EQ(ours.count(name), 1u) << name;
    ASSERT_EQ(ours.at(name).size(), values.size()) << name;
    EXPECT_EQ(std::memcmp(ours.at(name).data(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
}

struct Variant {
  const char* name;
  FsdpOptions options;
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  FsdpOptions blocks{.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>(), .init_seed = kSeed};
  variants.push_back({"Blocks", blocks});
  variants.push_back({"OneUnit", {.init_seed = kSeed}});
  variants.push_back({"SmallUnits", {.auto_wrap_policy = SizeBasedWrapPolicy(300), .init_seed = kSeed}});
  FsdpOptions original = blocks;
  original.use_orig_params = true;
  variants.push_back({"UseOrigParams", original});
  FsdpOptions post = blocks;
  post.backward_prefetch = BackwardPrefetch::kBackwardPost;
  post.forward_prefetch = true;
  variants.push_back({"PostAndForwardPrefetch", post});
  FsdpOptions none = blocks;
  none.backward_prefetch = BackwardPrefetch::kNone;
  none.limit_all_gathers = false;
  variants.push_back({"NoPrefetchNoLimit", none});
  FsdpOptions grad_op = blocks;
  grad_op.sharding_strategy = ShardingStrategy::kShardGradOp;
  variants.push_back({"ShardGradOp", grad_op});
  FsdpOptions replicated = blocks;
  replicated.sharding_strategy = ShardingStrategy::kNoShard;
  variants.push_back({"NoShard", replicated});
  return variants;
}

class FsdpParityTest : public testing::TestWithParam<int> {};

TEST_P(FsdpParityTest, EqualsMicroBatchesInOneProcessBitForBit) {
  ASSERT_OK_AND_ASSIGN(const Weights reference, TrainReference(GetParam()));
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    ASSERT_OK_AND_ASSIGN(const Weights ours, TrainSharded(GetParam(), variant.options));
    ExpectSameBits(ours, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, FsdpParityTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace fsdp
