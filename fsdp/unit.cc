// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor/convert.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

// What all ranks must have in common, as text.
std::string Fingerprint(const UnitStore& store) {
  std::string text;
  for (const auto& unit : store.units()) {
    absl::StrAppend(&text, unit->display_name(), " ", unit->layout.unsharded_numel(), " ",
                    std::string(DTypeName(unit->dtype)), " ", std::string(DTypeName(unit->compute_dtype)), " ",
                    std::string(DTypeName(unit->reduce_dtype)), " ", std::string(ShardingStrategyName(unit->strategy)),
                    "\n");
  }
  return text;
}

// Sets dtypes and layout from settings, groups and parameters.
absl::Status Lay(Unit& unit) {
  std::vector<ShardLayout::Entry> entries;
  for (const auto& parameter : unit.parameters) {
    if (entries.empty()) unit.dtype = parameter->dtype;
    if (parameter->dtype != unit.dtype || !IsFloatingPoint(parameter->dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unit ", unit.display_name(), ": parameters of one flat parameter must have one floating-point dtype, but \"",
          parameter->fqn, "\" is ", std::string(DTypeName(parameter->dtype)), " and \"", unit.parameters[0]->fqn,
          "\" is ", std::string(DTypeName(unit.dtype))));
    }
    entries.push_back({parameter->fqn, parameter->shape, 0});
  }
  const MixedPrecision& precision = unit.settings.mixed_precision;
  unit.compute_dtype = precision.param_dtype.value_or(unit.dtype);
  unit.reduce_dtype = precision.reduce_dtype.value_or(unit.compute_dtype);
  unit.layout = ShardLayout(std::move(entries), {.world_size = unit.groups.shard_world_size(),
                                                 .kind = unit.settings.layout,
                                                 .forward_dtype = unit.compute_dtype});
  return absl::OkStatus();
}

// Memory for shard and gradient, zero.
absl::Status Allocate(ProcessGroup& memory, Stream& stream, Unit& unit) {
  const Shape flat{unit.layout.shard_numel()};
  const int64_t nbytes = flat.numel() * SizeOf(unit.dtype);
  ASSIGN_OR_RETURN(Buffer shard, memory.Allocate(nbytes));
  ASSIGN_OR_RETURN(Buffer grad_shard, memory.Allocate(nbytes));
  unit.shard = Tensor(std::move(shard), unit.dtype, flat);
  unit.grad_shard = Tensor(std::move(grad_shard), unit.dtype, flat);
  const TensorOps& ops = memory.device()->ops();
  ops.Zero(unit.shard, stream);
  ops.Zero(unit.grad_shard, stream);
  return absl::OkStatus();
}

// Makes the views of the shard that an optimizer sees, and gives them their first values. Blocks.
absl::Status FillShard(uint64_t seed, Stream& stream, Unit& unit) {
  Device& device = stream.device();
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    Parameter& parameter = *unit.parameters[i];
    const ShardLayout::Slice slice = unit.layout.ShardSlice(i, unit.groups.shard_rank());
    const Interval in_shard{slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()};
    auto sharded = std::make_unique<ShardedParameter>();
    sharded->fqn = parameter.fqn;
    sharded->shape = parameter.shape;
    sharded->interval = slice.interval;
    sharded->data = unit.shard.Slice(in_shard);
    sharded->grad = unit.grad_shard.Slice(in_shard);
    sharded->device = &device;
    RETURN_IF_ERROR(CopyInitialValues(parameter, slice.interval, seed, sharded->data, stream));
    unit.sharded_parameters.push_back(std::move(sharded));
    parameter.data = Tensor();
    parameter.grad = Tensor();
  }
  return absl::OkStatus();
}

}  // namespace

UnitSettings UnitSettingsOf(const FsdpOptions& options, const UnitOverrides& overrides) {
  return {.sharding_strategy = overrides.sharding_strategy.value_or(options.sharding_strategy),
          .mixed_precision = overrides.mixed_precision.value_or(options.mixed_precision),
          .cpu_offload = overrides.cpu_offload.value_or(CpuOffload()),
          .layout = options.use_orig_params ? LayoutKind::kFlatAligned : LayoutKind::kFlat};
}

bool Unit::trainable() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->requires_grad; });
}

absl::StatusOr<std::unique_ptr<UnitStore>> UnitStore::Create(Partition partition,
                                                             const std::vector<UnitSettings>& settings,
                                                             ShardGroups groups, const ParameterInit& init) {
  std::unique_ptr<UnitStore> store(new UnitStore(std::move(groups)));
  RETURN_IF_ERROR(store->groups_.AgreeOn(store->Adopt(partition, settings)));
  RETURN_IF_ERROR(store->groups_.CheckEqual(Fingerprint(*store), "units (name, elements, dtypes, strategy)"));

  RETURN_IF_ERROR(store->groups_.AgreeOn(store->Fill(partition, init)));
  return store;
}

// Unit by unit, so that no more than one is whole at a time.
absl::Status UnitStore::Fill(const Partition& partition, const ParameterInit& init) {
  ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device().CreateStream("init"));
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    absl::Status made = MaterializeUnit(partition.units[u], init.param_init_fn);
    if (init.sync_module_states) {
      RETURN_IF_ERROR(groups_.AgreeOn(made));
      made = SyncParameters(partition.units[u], unit.groups, init.seed, *stream);
    }
    RETURN_IF_ERROR(made);
    ProcessGroup& memory = unit.sharded() ? *unit.groups.shard : *unit.groups.replicate;
    RETURN_IF_ERROR(Allocate(memory, *stream, unit));
    RETURN_IF_ERROR(FillShard(init.seed, *stream, unit));
  }
  if (!init.sync_module_states || units_.empty()) return absl::OkStatus();
  std::vector<Tensor> buffers;
  for (const auto& buffer : partition.buffers) buffers.push_back(buffer->data);
  return BroadcastTensors(buffers, units_[0]->groups, *stream);
}

absl::Status UnitStore::Adopt(const Partition& partition, const std::vector<UnitSettings>& settings) {
  const ShardingStrategy root_strategy =
      settings.empty() ? ShardingStrategy::kFullShard : settings[0].sharding_strategy;
  root_group_ = groups_.RootGroup(root_strategy);
  registration_order_ = partition.registration_order;
  aliases_ = partition.aliases;
  unmanaged_ = partition.unmanaged;
  warnings_ = partition.warnings;
  for (size_t u = 0; u < partition.units.size(); ++u) {
    const UnitModule& made = partition.units[u];
    auto unit = std::make_unique<Unit>();
    unit->name = made.name;
    unit->module = made.module;
    unit->parameters = made.parameters;
    unit->settings = settings[u];
    ASSIGN_OR_RETURN(unit->groups, groups_.Of(unit->settings.sharding_strategy));
    unit->strategy = unit->sharded() ? unit->settings.sharding_strategy : ShardingStrategy::kNoShard;
    RETURN_IF_ERROR(Lay(*unit));
    index_[unit->module] = static_cast<int>(u);
    units_.push_back(std::move(unit));
  }
  return absl::OkStatus();
}

int UnitStore::IndexOf(const Module& module) const {
  const auto found = index_.find(&module);
  return found == index_.end() ? -1 : found->second;
}

}  // namespace fsdp
