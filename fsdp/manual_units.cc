// SPDX-License-Identifier: Apache-2.0
//
// The parts under FullyShardedDataParallel without the two that need Modules: the program's calls stand for the hooks,
// so there is no Executor, and units are lists of shapes, so there is no walk of a module tree. No order is known
// beforehand; therefore the number of slots is the program's to say, and no unit is the root: all share the slots.
#include "fsdp/fsdp/manual_units.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_runtime.h"

namespace fsdp {
namespace {

Partition PartitionOf(const std::vector<ManualUnits::UnitSpec>& specs) {
  Partition partition;
  for (const ManualUnits::UnitSpec& spec : specs) {
    UnitModule unit;
    unit.name = spec.name;
    for (const ManualUnits::ParameterSpec& of : spec.parameters) {
      auto parameter = std::make_shared<Parameter>();
      parameter->fqn = of.name;
      parameter->shape = of.shape;
      parameter->initializer = of.initializer;
      unit.parameters.push_back(std::move(parameter));
    }
    partition.units.push_back(std::move(unit));
  }
  return partition;
}

absl::Status CheckNames(const std::vector<ManualUnits::UnitSpec>& specs) {
  for (const ManualUnits::UnitSpec& spec : specs) {
    if (spec.name.empty() || spec.parameters.empty()) {
      return absl::InvalidArgumentError("unit \"" + spec.name + "\": expected a name and at least one parameter");
    }
  }
  return absl::OkStatus();
}

}  // namespace

ManualUnits::ManualUnits() = default;
ManualUnits::~ManualUnits() = default;

absl::StatusOr<std::unique_ptr<ManualUnits>> ManualUnits::Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                                 int units_at_once, const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(groups.AgreeOn(CheckNames(units)));
  if (options.shard_group_size > 0) FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(options.shard_group_size));
  std::unique_ptr<ManualUnits> made(new ManualUnits());
  const std::vector<UnitSettings> settings(units.size(), UnitSettingsOf(options, {}, /*is_root=*/false));
  FSDP_ASSIGN_OR_RETURN(made->units_, UnitStore::Create(PartitionOf(units), settings, std::move(groups),
                                                        ParameterInit{.seed = options.init_seed}));
  // One gradient slot more, so that a unit's reduction overlaps the backward of the next.
  const SlotCounts slots{.unsharded = units_at_once, .gradients = units_at_once + 1};
  FSDP_ASSIGN_OR_RETURN(made->runtime_, UnitRuntime::Create(*made->units_, MemoryPlan::Of(*made->units_, slots)));
  return made;
}

absl::Status ManualUnits::Prefetch(int index) { return runtime_->Unshard(index); }

absl::StatusOr<std::vector<Tensor>> ManualUnits::Unshard(int index) {
  FSDP_RETURN_IF_ERROR(runtime_->BindParameters(index));
  std::vector<Tensor> whole;
  for (const auto& parameter : units_->unit(index).parameters) whole.push_back(parameter->data);
  return whole;
}

absl::StatusOr<std::vector<Tensor>> ManualUnits::Gradients(int index) {
  FSDP_RETURN_IF_ERROR(runtime_->gradients().Bind(index, GradientReduction::Sync::kReduce));
  std::vector<Tensor> whole;
  for (const auto& parameter : units_->unit(index).parameters) whole.push_back(parameter->grad);
  return whole;
}

void ManualUnits::Reshard(int index) { runtime_->Reshard(index); }

absl::Status ManualUnits::Reduce(int index) {
  const Unit& unit = units_->unit(index);
  GradientReduction& gradients = runtime_->gradients();
  gradients.Unbind(index, GradientReduction::Sync::kReduce);
  if (unit.sharded()) FSDP_RETURN_IF_ERROR(gradients.ReduceScatter(index));
  if (unit.groups.replicate != nullptr) FSDP_RETURN_IF_ERROR(gradients.AllReduce(index));
  return absl::OkStatus();
}

void ManualUnits::FinishBackward() { runtime_->gradients().WaitForReductions(); }

void ManualUnits::FinishStep() { runtime_->WaitForOptimizer(Event()); }

std::vector<ShardedParameter*> ManualUnits::parameters() const {
  std::vector<ShardedParameter*> all;
  for (const auto& unit : units_->units()) {
    for (const auto& parameter : unit->sharded_parameters) all.push_back(parameter.get());
  }
  return all;
}

Stream& ManualUnits::stream() const { return runtime_->compute_stream(); }

}  // namespace fsdp
