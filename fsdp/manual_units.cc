// SPDX-License-Identifier: Apache-2.0
//
// The parts under FullyShardedDataParallel without the two that need Modules: the program's calls stand for the hooks,
// so there is no Executor, and units are lists of shapes, so there is no walk of a module tree. No order is known
// beforehand; therefore the number of slots is the program's to say, and no unit is the root: all share the slots.
#include "fsdp/fsdp/manual_units.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/option_check.h"
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
  std::set<std::string> units;
  std::map<std::string, std::string> unit_of;  // by parameter
  for (const ManualUnits::UnitSpec& spec : specs) {
    if (spec.name.empty() || spec.parameters.empty()) {
      return absl::InvalidArgumentError("unit \"" + spec.name + "\": expected a name and at least one parameter");
    }
    if (!units.insert(spec.name).second) {
      return absl::InvalidArgumentError("unit \"" + spec.name + "\" is listed twice: expected names of their own");
    }
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const std::string& name = spec.parameters[i].name;
      if (name.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("unit \"", spec.name, "\": parameter ", i, " has no name: expected one"));
      }
      const auto [known, is_new] = unit_of.emplace(name, spec.name);
      if (is_new) continue;
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", name, "\" of unit \"", spec.name,
                                                     "\" is one of unit \"", known->second,
                                                     "\" already: expected names of their own"));
    }
  }
  return absl::OkStatus();
}

// Options for what only a model of modules has, and the schedule that they make, would be read by nobody.
absl::Status CheckOptionsAreRead(const FsdpOptions& options) {
  const FsdpOptions defaults;
  const std::pair<const char*, bool> set[] = {
      {"auto_wrap_policy", static_cast<bool>(options.auto_wrap_policy)},
      {"ignored_modules", !options.ignored_modules.empty()},
      {"ignored_states", options.ignored_states.index() != 0},
      {"mixed_precision.buffer_dtype", options.mixed_precision.buffer_dtype.has_value()},
      {"mixed_precision.cast_forward_inputs", options.mixed_precision.cast_forward_inputs},
      {"full_precision_in_eval", options.full_precision_in_eval},
      {"activation_checkpointing", options.activation_checkpointing},
      {"check_execution_order", options.check_execution_order},
      {"param_init_fn", options.param_init_fn != nullptr},
      {"sync_module_states", options.sync_module_states},
      {"device_id", options.device_id.has_value()},
      {"backward_prefetch", options.backward_prefetch != defaults.backward_prefetch},
      {"forward_prefetch", options.forward_prefetch},
      {"limit_all_gathers", options.limit_all_gathers != defaults.limit_all_gathers},
      {"trace", options.trace != nullptr},
  };
  for (const auto& [name, is_set] : set) {
    if (!is_set) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is set, but ManualUnits has no modules and no schedule: expected its default"));
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(const std::vector<ManualUnits::UnitSpec>& specs, int units_at_once,
                            const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNames(specs));
  FSDP_RETURN_IF_ERROR(CheckAtLeast1("units_at_once", units_at_once));
  FSDP_RETURN_IF_ERROR(Validate(options));
  FSDP_RETURN_IF_ERROR(CheckShardGroupSizeIsUsed(options, IsHybrid(options.sharding_strategy)));
  return CheckOptionsAreRead(options);
}

}  // namespace

ManualUnits::ManualUnits() = default;
ManualUnits::~ManualUnits() = default;

absl::StatusOr<std::unique_ptr<ManualUnits>> ManualUnits::Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                                 int units_at_once, const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(groups.Validate());
  FSDP_RETURN_IF_ERROR(groups.AgreeOn(CheckArguments(units, units_at_once, options)));
  if (options.shard_group_size.has_value()) FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(*options.shard_group_size));
  std::unique_ptr<ManualUnits> made(new ManualUnits());
  const ModelSettings settings{std::vector<UnitSettings>(units.size(), UnitSettingsOf(options, {}, /*is_root=*/false))};
  FSDP_ASSIGN_OR_RETURN(made->units_, UnitStore::Create(PartitionOf(units), settings, std::move(groups),
                                                        ParameterInit{.seed = options.init_seed}));
  // One gradient slot more, so that a unit's reduction overlaps the backward of the next.
  const SlotCounts slots{.unsharded = units_at_once, .gradients = units_at_once + 1};
  FSDP_ASSIGN_OR_RETURN(made->runtime_, UnitRuntime::Create(*made->units_, MemoryPlan::Of(*made->units_, slots)));
  return made;
}

absl::Status ManualUnits::CheckIndex(int index) const {
  if (index >= 0 && index < units_->size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unit ", index, ": expected an index below ", units_->size(), ", the number of units"));
}

absl::Status ManualUnits::Prefetch(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  if (runtime_->is_stale(index)) runtime_->Reshard(index);
  return runtime_->Unshard(index);
}

absl::StatusOr<std::vector<Tensor>> ManualUnits::Unshard(int index) {
  FSDP_RETURN_IF_ERROR(Prefetch(index));
  FSDP_RETURN_IF_ERROR(runtime_->BindParameters(index));
  std::vector<Tensor> whole;
  for (const auto& parameter : units_->unit(index).parameters) whole.push_back(parameter->data);
  return whole;
}

absl::StatusOr<std::vector<Tensor>> ManualUnits::Gradients(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  FSDP_RETURN_IF_ERROR(runtime_->gradients().Bind(index, GradientReduction::Sync::kReduce));
  std::vector<Tensor> whole;
  for (const auto& parameter : units_->unit(index).parameters) whole.push_back(parameter->grad);
  return whole;
}

absl::Status ManualUnits::Reshard(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  runtime_->Reshard(index);
  return absl::OkStatus();
}

absl::Status ManualUnits::Reduce(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
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
