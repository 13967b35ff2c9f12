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

// Initial values of `interval` of `parameter`, in the unit's dtype, to host memory at `out`.
absl::Status InitialValues(const Parameter& parameter, const Interval& interval, uint64_t seed, void* out) {
  if (parameter.data.defined()) {
    return Convert(parameter.data.dtype(), parameter.data.Slice(interval).data(), parameter.dtype, out,
                   interval.size());
  }
  std::vector<float> values(interval.size());
  parameter.initializer.Fill(seed, parameter.fqn, interval, values.data());
  return Convert(DType::kFloat32, values.data(), parameter.dtype, out, interval.size());
}

// Makes the views of the shard that an optimizer sees, and gives them their first values. Blocks.
absl::Status Fill(uint64_t seed, Stream& stream, Unit& unit) {
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
    ASSIGN_OR_RETURN(Buffer staging, device.AllocatePinned(sharded->data.nbytes()));
    RETURN_IF_ERROR(InitialValues(parameter, slice.interval, seed, staging.data()));
    stream.CopyAsync(sharded->data.data(), staging.data(), sharded->data.nbytes());
    RETURN_IF_ERROR(stream.Synchronize());
    unit.sharded_parameters.push_back(std::move(sharded));
    parameter.data = Tensor();
    parameter.grad = Tensor();
  }
  return stream.Synchronize();
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
                                                             ShardGroups groups, uint64_t seed) {
  std::unique_ptr<UnitStore> store(new UnitStore(std::move(groups)));
  RETURN_IF_ERROR(store->groups_.AgreeOn(store->Adopt(std::move(partition), settings)));
  RETURN_IF_ERROR(store->groups_.CheckEqual(Fingerprint(*store), "units (name, elements, dtypes, strategy)"));

  ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, store->device().CreateStream("init"));
  absl::Status filled;
  for (auto& unit : store->units_) {
    ProcessGroup& memory = unit->sharded() ? *unit->groups.shard : *unit->groups.replicate;
    if (filled.ok()) filled = Allocate(memory, *stream, *unit);
    if (filled.ok()) filled = Fill(seed, *stream, *unit);
  }
  RETURN_IF_ERROR(store->groups_.AgreeOn(filled));
  return store;
}

absl::Status UnitStore::Adopt(Partition partition, const std::vector<UnitSettings>& settings) {
  const ShardingStrategy root_strategy =
      settings.empty() ? ShardingStrategy::kFullShard : settings[0].sharding_strategy;
  root_group_ = groups_.RootGroup(root_strategy);
  registration_order_ = std::move(partition.registration_order);
  aliases_ = std::move(partition.aliases);
  for (size_t u = 0; u < partition.units.size(); ++u) {
    UnitModule& made = partition.units[u];
    auto unit = std::make_unique<Unit>();
    unit->name = std::move(made.name);
    unit->module = made.module;
    unit->parameters = std::move(made.parameters);
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
