// SPDX-License-Identifier: Apache-2.0
//
// A model that computes its loss in chunks of rows, sharded by FullyShard with its head in each kind of unit: the bits
// of FSDP1 with units of blocks, which fsdp_parity_test.cc compares with one process.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 4, kMicroSteps = 2;

struct Trained {
  std::vector<float> losses;  // rank 0's, of each micro-step
  std::map<std::string, std::vector<float>> weights;
};

Gpt2Config UntiedConfig(int64_t loss_chunks) {
  Gpt2Config config = OddGpt2Config();
  config.tie_word_embeddings = false;
  config.loss_chunks = loss_chunks;
  return config;
}

// With 0 chunks, CrossEntropyLoss on all logits.
absl::StatusOr<Tensor> ComputeGradients(FullyShardedDataParallel& model, const TestBatch& batch, int64_t loss_chunks) {
  Tape tape = model.NewTape();
  if (loss_chunks > 0) {
    tape.set_loss_scale(1.0f / kMicroSteps);
    FSDP_ASSIGN_OR_RETURN(const TensorList outputs, model.Forward(TensorList{batch.tokens, batch.targets}, tape));
    FSDP_RETURN_IF_ERROR(model.Backward(TensorList{Tensor()}, tape).status());
    return outputs.at(0);
  }
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
  FSDP_ASSIGN_OR_RETURN(const auto made,
                        CrossEntropyLoss().ForwardBackward(logits, batch.targets, 1.0f / kMicroSteps, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(made.grad_logits, tape).status());
  return made.loss;
}

absl::StatusOr<Trained> TrainOnRank(FullyShardedDataParallel& model, int64_t loss_chunks) {
  Trained trained;
  AdamW optimizer(AdamW::DecayMatricesOnly(model.parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
  for (int step = 0; step < kSteps; ++step) {
    for (int micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      std::unique_ptr<NoSyncGuard> no_sync;
      if (micro_step + 1 < kMicroSteps) no_sync = std::make_unique<NoSyncGuard>(model);
      FSDP_ASSIGN_OR_RETURN(const TestBatch batch,
                            TestBatchOf(model.device(), step * kMicroSteps + micro_step, model.group().rank()));
      FSDP_ASSIGN_OR_RETURN(const Tensor loss, ComputeGradients(model, batch, loss_chunks));
      FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
      EXPECT_EQ(loss.dtype(), DType::kFloat32);
      trained.losses.push_back(*loss.data_as<float>());
    }
    FSDP_RETURN_IF_ERROR(optimizer.Step(model.stream()));
    optimizer.ZeroGrad();
  }
  StateDictTypeGuard guard(model, FullStateDictConfig{});
  FSDP_ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  for (const auto& [key, value] : state.entries()) {
    const auto* sharded = std::get_if<ShardedTensor>(&value);
    if (sharded == nullptr || sharded->shards.empty()) continue;
    const Tensor& data = sharded->shards.at(0).data;
    trained.weights[key.fqn].assign(data.data_as<float>(), data.data_as<float>() + data.numel());
  }
  return trained;
}

// Makes the sharded model of one rank.
using Shard = std::function<absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>>(std::unique_ptr<Module>,
                                                                                      std::shared_ptr<ProcessGroup>)>;

absl::StatusOr<Trained> Train(int ranks, int64_t loss_chunks, const Shard& shard) {
  Trained trained;
  FSDP_RETURN_IF_ERROR(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(UntiedConfig(loss_chunks)));
    FSDP_ASSIGN_OR_RETURN(const auto model, shard(std::move(module), group));
    FSDP_ASSIGN_OR_RETURN(Trained own, TrainOnRank(*model, loss_chunks));
    if (group->rank() == 0) trained = std::move(own);
    return absl::OkStatus();
  }));
  return trained;
}

Shard Wrapped(FsdpOptions options) {
  return [options](std::unique_ptr<Module> module, std::shared_ptr<ProcessGroup> group) {
    return FullyShardedDataParallel::Wrap(std::move(module), std::move(group), options);
  };
}

// FullyShard of the blocks, of `units` by name, each one or several modules, and of the root.
Shard FullyShardedUnits(std::vector<std::vector<std::string>> units, MixedPrecisionPolicy precision = {}) {
  return [units, precision](
             std::unique_ptr<Module> module,
             std::shared_ptr<ProcessGroup> group) -> absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FullyShardOptions options;
    options.mp_policy = precision;
    options.init_seed = 11;
    std::map<std::string, Module*> modules;
    for (const auto& [name, below] : module->NamedModules()) {
      modules[name] = below;
      if (dynamic_cast<Gpt2Block*>(below) != nullptr) FSDP_RETURN_IF_ERROR(FullyShard(*below, mesh, options).status());
    }
    for (const std::vector<std::string>& unit : units) {
      std::vector<Module*> members;
      for (const std::string& name : unit) members.push_back(modules.at(name));
      FSDP_RETURN_IF_ERROR(FullyShard(members, mesh, options).status());
    }
    FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
    return FullyShardedDataParallel::FromFullyShard(std::move(module));
  };
}

TEST(LossChunksTest, FullyShardedHeadsOfEachKindOfUnitHaveTheBitsOfFsdp1) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    ASSERT_OK_AND_ASSIGN(const Trained expected, Train(ranks, 3, Wrapped(BlockOptions())));
    ASSERT_FALSE(expected.weights.empty());
    const std::vector<std::vector<std::vector<std::string>>> heads = {
        {}, {{"lm_head"}}, {{"transformer.ln_f", "lm_head"}}};
    for (const auto& units : heads) {
      SCOPED_TRACE(units.size());
      ASSERT_OK_AND_ASSIGN(const Trained trained, Train(ranks, 3, FullyShardedUnits(units)));
      EXPECT_EQ(trained.losses, expected.losses);
      EXPECT_EQ(trained.weights, expected.weights);
    }
  }
}

// The loss stays float32 where activations do not, also if the head is a unit, whose outputs FSDP1 casts back to the
// dtype of its inputs.
TEST(LossChunksTest, LossesIn16BitsFollowThoseOfAllLogits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    FsdpOptions options = BlockOptions();
    options.mixed_precision = {.param_dtype = dtype, .reduce_dtype = DType::kFloat32};
    FsdpOptions small = options;
    small.auto_wrap_policy = SizeBasedWrapPolicy(300);
    const MixedPrecisionPolicy policy = {.param_dtype = dtype, .reduce_dtype = DType::kFloat32};
    const std::vector<Shard> kinds = {Wrapped(options), Wrapped(small), FullyShardedUnits({{"lm_head"}}, policy)};
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      SCOPED_TRACE(kind);
      ASSERT_OK_AND_ASSIGN(const Trained expected, Train(2, 0, kinds[kind]));
      ASSERT_OK_AND_ASSIGN(const Trained trained, Train(2, 3, kinds[kind]));
      ASSERT_EQ(trained.losses.size(), expected.losses.size());
      for (size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(trained.losses[i], expected.losses[i], 5e-3 * expected.losses[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
