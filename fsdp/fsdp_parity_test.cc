// SPDX-License-Identifier: Apache-2.0
//
// FSDP on n ranks against n micro-batches in one process without it: equal in every bit, because both add in rank
// order. The reference computes each micro-batch's gradient into a zeroed buffer, divides it by the pre-divide factor,
// adds in rank order within each block of shard ranks, then block by block, and divides by the post-divide factor. With
// more than one of Gpt2Config::loss_chunks the model computes the loss.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/units/reduction_rule.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

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

// Three chunks of the 10 rows of a batch, and a head that is a unit of its own if units are by size.
Gpt2Config ConfigWithChunks() {
  Gpt2Config config = OddGpt2Config();
  config.loss_chunks = 3;
  config.tie_word_embeddings = false;
  return config;
}

absl::Status ComputeGradients(const Gpt2Config& config, Module& module, const std::pair<Tensor, Tensor>& batch,
                              Tape& tape) {
  if (config.loss_chunks > 1) {
    FSDP_RETURN_IF_ERROR(module.Forward(TensorList{batch.first, batch.second}, tape).status());
    return module.Backward(TensorList{Tensor()}, tape).status();
  }
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, module.Forward(batch.first, tape));
  FSDP_RETURN_IF_ERROR(loss.Forward(logits, batch.second, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(1.0f, tape));
  return module.Backward(grad_logits, tape).status();
}

absl::StatusOr<Tensor> CopyOf(const Tensor& source, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(stream.device(), source.dtype(), source.shape()));
  stream.device().ops().CastDivide(source, copy, 1, stream);
  return copy;
}

// One process, no sharding; the sum of `world_size` micro-batches in blocks of `block`.
class Reference {
 public:
  Reference(int world_size, int block, Gpt2Config config = OddGpt2Config())
      : world_size_(world_size),
        block_(block),
        factors_(GradientDivideFactors(world_size)),
        config_(std::move(config)) {}

  absl::StatusOr<Weights> Train() {
    FSDP_ASSIGN_OR_RETURN(layer_ops_, LayerOpsFor(*device_));
    FSDP_ASSIGN_OR_RETURN(stream_, device_->CreateStream("reference"));
    FSDP_ASSIGN_OR_RETURN(module_, MakeGpt2(config_));
    module_->AssignNames();
    FSDP_RETURN_IF_ERROR(module_->Materialize(*device_, kSeed));
    FSDP_ASSIGN_OR_RETURN(const auto parameters, UnshardedParameters(*module_, *device_));
    for (const auto& parameter : parameters) parameters_.push_back(parameter.get());
    AdamW optimizer(AdamW::DecayMatricesOnly(parameters_, Hyperparameters()));
    for (int step = 0; step < kSteps; ++step) {
      FSDP_RETURN_IF_ERROR(MeanGradient(step));
      FSDP_RETURN_IF_ERROR(optimizer.Step(*stream_));
    }
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    Weights weights;
    for (const ShardedParameter* p : parameters_) {
      weights[p->fqn].assign(p->data.data_as<float>(), p->data.data_as<float>() + p->data.numel());
    }
    return weights;
  }

 private:
  // Leaves the pre-divided gradient of one rank's micro-batch in the parameters.
  absl::Status RankGradient(int step, int rank) {
    for (ShardedParameter* p : parameters_) ops_.Zero(p->grad, *stream_);
    Tape tape(*stream_, *layer_ops_);
    FSDP_RETURN_IF_ERROR(ComputeGradients(config_, *module_, BatchOf(*device_, step, rank), tape));
    for (ShardedParameter* p : parameters_) ops_.CastDivide(p->grad, p->grad, factors_.pre, *stream_);
    return absl::OkStatus();
  }

  // Adds the parameters' gradients to `sums`, or starts it with them.
  absl::Status AddTo(std::vector<Tensor>& sums) {
    const bool first = sums.empty();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!first) {
        ops_.Accumulate(parameters_[i]->grad, sums[i], *stream_);
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(Tensor copy, CopyOf(parameters_[i]->grad, *stream_));
      sums.push_back(std::move(copy));
    }
    return absl::OkStatus();
  }

  absl::Status MeanGradient(int step) {
    std::vector<Tensor> total;
    for (int first = 0; first < world_size_; first += block_) {
      std::vector<Tensor> sums;
      for (int rank = first; rank < first + block_; ++rank) {
        FSDP_RETURN_IF_ERROR(RankGradient(step, rank));
        FSDP_RETURN_IF_ERROR(AddTo(sums));
      }
      for (size_t i = 0; i < sums.size(); ++i) ops_.CastDivide(sums[i], parameters_[i]->grad, 1, *stream_);
      FSDP_RETURN_IF_ERROR(AddTo(total));
    }
    for (size_t i = 0; i < total.size(); ++i) {
      ops_.CastDivide(total[i], parameters_[i]->grad, factors_.post, *stream_);
      parameters_[i]->has_grad = true;
    }
    return absl::OkStatus();
  }

  const int world_size_, block_;
  const DivideFactors factors_;
  const Gpt2Config config_;
  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const TensorOps& ops_ = device_->ops();
  std::shared_ptr<const LayerOps> layer_ops_;
  std::unique_ptr<Module> module_;
  std::vector<ShardedParameter*> parameters_;
  std::unique_ptr<Stream> stream_;
};

// The same on `world_size` ranks; every rank's FULL state dict must be the same, so rank 0's is returned.
absl::StatusOr<Weights> TrainSharded(int world_size, const FsdpOptions& options,
                                     const Gpt2Config& config = OddGpt2Config()) {
  Weights weights;
  FSDP_RETURN_IF_ERROR(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(config));
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    AdamW optimizer(AdamW::DecayMatricesOnly(model->parameters(), Hyperparameters()));
    for (int step = 0; step < kSteps; ++step) {
      Tape tape = model->NewTape();
      FSDP_RETURN_IF_ERROR(
          ComputeGradients(config, model->module(), BatchOf(model->device(), step, group->rank()), tape));
      FSDP_RETURN_IF_ERROR(optimizer.Step(model->stream()));
      optimizer.ZeroGrad();
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict state, model->GetStateDict());
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
  ASSERT_OK_AND_ASSIGN(const Weights reference, Reference(GetParam(), GetParam()).Train());
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    ASSERT_OK_AND_ASSIGN(const Weights ours, TrainSharded(GetParam(), variant.options));
    ExpectSameBits(ours, reference);
  }
}

TEST_P(FsdpParityTest, LossesInChunksOfRowsEqualMicroBatchesInOneProcessBitForBit) {
  const Gpt2Config config = ConfigWithChunks();
  ASSERT_OK_AND_ASSIGN(const Weights reference, Reference(GetParam(), GetParam(), config).Train());
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    ASSERT_OK_AND_ASSIGN(const Weights ours, TrainSharded(GetParam(), variant.options, config));
    ExpectSameBits(ours, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, FsdpParityTest, testing::Values(1, 2, 3, 4, 7));

struct Grid {
  int world_size;
  int shard_group_size;
};

class HybridParityTest : public testing::TestWithParam<Grid> {};

TEST_P(HybridParityTest, SumsShardRanksThenReplicasBitForBit) {
  const auto [world_size, shard_group_size] = GetParam();
  ASSERT_OK_AND_ASSIGN(const Weights reference, Reference(world_size, shard_group_size).Train());
  for (const ShardingStrategy strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    const FsdpOptions options{.sharding_strategy = strategy,
                              .shard_group_size = shard_group_size,
                              .auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>(),
                              .init_seed = kSeed};
    ASSERT_OK_AND_ASSIGN(const Weights ours, TrainSharded(world_size, options));
    ExpectSameBits(ours, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, HybridParityTest,
                         testing::Values(Grid{4, 2}, Grid{6, 3}, Grid{6, 2}, Grid{4, 4}, Grid{3, 1}),
                         [](const auto& grid) {
                           return std::to_string(grid.param.world_size / grid.param.shard_group_size) + "x" +
                                  std::to_string(grid.param.shard_group_size);
                         });

}  // namespace
}  // namespace fsdp
