// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/model_testutil.h"

#include <optional>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/cross_entropy_loss.h"

namespace fsdp {
namespace {

constexpr int kRows = 2;
constexpr int kSeqLen = 5;
constexpr int kVocabulary = 29;

}  // namespace

Gpt2Config OddGpt2Config() {
  Gpt2Config config;
  config.vocab_size = kVocabulary;
  // Odd sizes, so that shards are padded and rows unaligned.
  config.n_positions = 7;
  config.n_embd = 15;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_inner = 23;
  return config;
}

FsdpOptions BlockOptions() { return {.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>(), .init_seed = 11}; }

FsdpOptions MixedOptions() {
  FsdpOptions options = BlockOptions();
  options.auto_wrap_policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
    if (dynamic_cast<Gpt2Block*>(&module) == nullptr) return std::nullopt;
    return UnitOverrides{.sharding_strategy = ShardingStrategy::kNoShard};
  });
  return options;
}

absl::StatusOr<TestModel> MakeTestModel(ShardGroups groups, const FsdpOptions& options, DType dtype) {
  TestModel made;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  if (dtype != DType::kFloat32) FSDP_RETURN_IF_ERROR(module->To(dtype, *groups.any().device()));
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), std::move(groups), options));
  made.optimizer =
      std::make_unique<AdamW>(AdamW::DecayMatricesOnly(made.model->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
  return made;
}

// Squares modulo a prime: batches differ by step and rank, and are the same on every run.
absl::StatusOr<TestBatch> TestBatchOf(Device& device, int step, int rank) {
  TestBatch batch;
  FSDP_ASSIGN_OR_RETURN(batch.tokens, Tensor::Empty(device, DType::kInt32, {kRows, kSeqLen}));
  FSDP_ASSIGN_OR_RETURN(batch.targets, Tensor::Empty(device, DType::kInt32, {kRows * kSeqLen}));
  for (int i = 0; i < kRows * kSeqLen; ++i) {
    const int at = (step * 7 + rank) * 31 + i;
    batch.tokens.data_as<int32_t>()[i] = at * at % kVocabulary;
    batch.targets.data_as<int32_t>()[i] = (at + 1) * (at + 1) % kVocabulary;
  }
  return batch;
}

absl::StatusOr<float> TestModel::ComputeGradients(int step) {
  FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(model->device(), step, model->group().rank()));
  Tape tape = model->NewTape();
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model->Forward(batch.tokens, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor value, loss.Forward(logits, batch.targets, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(model->Backward(grad_logits, tape).status());
  // The host reads the loss.
  FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
  return *value.data_as<float>();
}

absl::Status TestModel::Train(int step) {
  FSDP_RETURN_IF_ERROR(ComputeGradients(step).status());
  FSDP_RETURN_IF_ERROR(optimizer->Step(model->stream()));
  optimizer->ZeroGrad();
  return model->stream().Synchronize();
}

absl::StatusOr<StateDict> TestModel::AllState() {
  FSDP_ASSIGN_OR_RETURN(StateDict state, model->GetStateDict());
  FSDP_RETURN_IF_ERROR(model->AddOptimStateDict(*optimizer, state));
  return state;
}

}  // namespace fsdp
