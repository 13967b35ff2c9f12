// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/sharded_model.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/memory_plan.h"
#include "fsdp/nn/device_layer_ops.h"

namespace fsdp {
namespace {

// Every rank visits every unit, also after an error: its collectives wait for all ranks.
void Visit(Module& module, const UnitStore& units, const std::function<absl::Status(Module&)>& fn,
           absl::Status& first) {
  std::unique_ptr<SummonFullParamsGuard> guard;
  if (units.IndexOf(module) >= 0) {
    auto summoned = SummonFullParamsGuard::Create(module, units, {.recurse = false});
    first.Update(summoned.status());
    if (summoned.ok()) guard = *std::move(summoned);
  }
  for (const auto& [name, child] : module.children()) Visit(*child, units, fn, first);
  if (first.ok()) first.Update(fn(module));
  if (guard != nullptr) first.Update(guard->Close());
}

}  // namespace

ShardedModel::ShardedModel(Module& module, std::unique_ptr<UnitStore> units)
    : module_(module), units_(std::move(units)) {}

absl::StatusOr<std::shared_ptr<ShardedModel>> ShardedModel::Create(Module& module, std::unique_ptr<UnitStore> units,
                                                                   const ExecutorOptions& options) {
  std::shared_ptr<ShardedModel> model(new ShardedModel(module, std::move(units)));
  FSDP_ASSIGN_OR_RETURN(model->layer_ops_, LayerOpsFor(model->units_->device()));
  FSDP_ASSIGN_OR_RETURN(model->executor_, Executor::Create(module, *model->units_, options));
  return model;
}

absl::StatusOr<std::shared_ptr<ShardedModel>> ShardedModel::CreateManual(Module& module,
                                                                         std::unique_ptr<UnitStore> units,
                                                                         const SlotCounts& slots, StepGate& gate) {
  std::shared_ptr<ShardedModel> model(new ShardedModel(module, std::move(units)));
  const UnitStore& made = *model->units_;
  FSDP_ASSIGN_OR_RETURN(model->manual_runtime_, UnitRuntime::Create(made, MemoryPlan::Of(made, slots)));
  model->manual_gate_ = &gate;
  return model;
}

std::vector<ShardedParameter*> ShardedModel::parameters() const {
  std::vector<ShardedParameter*> parameters;
  for (const auto& unit : units_->units()) {
    if (unit->dtype_group_of.has_value()) continue;
    for (const Unit* part : unit->Parts()) {
      for (const auto& parameter : part->sharded_parameters) parameters.push_back(parameter.get());
    }
  }
  return parameters;
}

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> ShardedModel::SummonFullParams(
    Module& module, const SummonFullParamsOptions& options) {
  FSDP_RETURN_IF_ERROR(gate().CheckIdle("SummonFullParams"));
  return SummonFullParamsGuard::Create(module, *units_, options);
}

absl::Status ShardedModel::Apply(Module& module, const std::function<absl::Status(Module&)>& fn) {
  FSDP_RETURN_IF_ERROR(gate().CheckIdle("Apply"));
  absl::Status first;
  Visit(module, *units_, fn, first);
  return units_->groups().AllReduceStatus(first);
}

}  // namespace fsdp
