// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/units_testutil.h"

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {

UnitSettings Fsdp2Settings() {
  UnitSettings settings;
  settings.layout = LayoutKind::kDim0;
  settings.gradient_rules = GradientRules::kFsdp2;
  return settings;
}

// The steps of FullyShardedDataParallel::Wrap, with the same settings for every unit.
absl::StatusOr<TestUnits> MakeTestUnits(ShardGroups groups, int rank, const UnitSettings& settings,
                                        const ExecutorOptions& options) {
  TestUnits made;
  made.rank = rank;
  FSDP_ASSIGN_OR_RETURN(made.module, MakeGpt2(OddGpt2Config()));
  made.module->AssignNames();
  // The root first, then the blocks in the order of names, as a policy would return them.
  std::vector<UnitRequest> requests{{{made.module.get()}}};
  for (const auto& [name, module] : made.module->NamedModules()) {
    if (dynamic_cast<Gpt2Block*>(module) != nullptr) requests.push_back({{module}});
  }
  FSDP_ASSIGN_OR_RETURN(Partition partition, Partition::Of(*made.module, requests, {}));
  const ModelSettings all{.units = std::vector<UnitSettings>(partition.units.size(), settings),
                          .bare = std::vector<UnitSettings>(partition.bare.size(), settings)};
  FSDP_ASSIGN_OR_RETURN(made.layer_ops, LayerOpsFor(*groups.any().device()));
  FSDP_ASSIGN_OR_RETURN(made.units, UnitStore::Create(std::move(partition), all, std::move(groups), {.seed = 11}));
  FSDP_ASSIGN_OR_RETURN(made.executor, Executor::Create(*made.module, *made.units, options));
  made.optimizer =
      std::make_unique<AdamW>(AdamW::DecayMatricesOnly(made.parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
  return made;
}

std::vector<ShardedParameter*> TestUnits::parameters() const {
  std::vector<ShardedParameter*> all;
  for (const auto& unit : units->units()) {
    for (const auto& parameter : unit->sharded_parameters) all.push_back(parameter.get());
  }
  return all;
}

absl::Status TestUnits::ComputeGradients(int step) {
  Stream& stream = executor->runtime().compute_stream();
  FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(stream.device(), step, rank));
  Tape tape(stream, *layer_ops);
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, module->Forward(batch.tokens, tape));
  FSDP_RETURN_IF_ERROR(loss.Forward(logits, batch.targets, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(module->Backward(grad_logits, tape).status());
  return executor->runtime().Synchronize();
}

absl::Status TestUnits::Train(int step) {
  FSDP_RETURN_IF_ERROR(ComputeGradients(step));
  FSDP_RETURN_IF_ERROR(optimizer->Step(executor->runtime().compute_stream()));
  optimizer->ZeroGrad();
  return executor->runtime().Synchronize();
}

void WholeTensors::Add(const std::string& name, const Shape& shape, const Interval& interval, const Tensor& slice) {
  // Ranks are threads, and each adds its own intervals.
  std::lock_guard<std::mutex> lock(*mutex_);
  std::vector<float>& whole = tensors_[name];
  whole.resize(shape.numel());
  const absl::Status converted =
      Convert(slice.dtype(), slice.data(), DType::kFloat32, whole.data() + interval.begin, interval.size());
  Check(converted.ok(), "float tensors convert to float32");
}

void WholeTensors::AddParameters(const std::vector<ShardedParameter*>& parameters) {
  for (const ShardedParameter* p : parameters) Add(p->fqn, p->shape, p->interval, p->data);
}

void WholeTensors::AddGradients(const std::vector<ShardedParameter*>& parameters) {
  for (const ShardedParameter* p : parameters) Add(p->fqn, p->shape, p->interval, p->grad);
}

}  // namespace fsdp
