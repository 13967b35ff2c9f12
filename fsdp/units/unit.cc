// SPDX-License-Identifier: Apache-2.0
//
// A UnitStore is made in steps, each of which all ranks finish or fail together (AllReduceStatus): if only one rank
// failed, the others would wait in their next collective.
//
//   Adopt     local   partition + settings -> units with groups, dtypes and layouts, no memory
//   compare   coll.   RankAgreement: ranks whose units differ would match up wrong collectives later
//   split     coll.   groups for reshard_after_forward of an int
//   Fill      coll.   memory and first values, unit by unit
//
// Fill takes one unit at a time through materialise, broadcast (sync_module_states), shard and free, so at most one
// unit is whole at the same time beyond the program's own allocations. Initializers are functions of (seed, name,
// element), so every rank computes only its own slice, and the values are equal for any number of ranks.
#include "fsdp/fsdp/units/unit.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// PyTorch's warning, once for the model: the messages of units differ only in the strategy.
void WarnOfNoShard(const Unit& unit, std::vector<std::string>& warnings) {
  if (unit.groups.data_parallel_size() > 1 || unit.settings.sharding_strategy == ShardingStrategy::kNoShard) return;
  std::string warning =
      absl::StrCat("FSDP switches to no_shard instead of ",
                   std::string(ShardingStrategyName(unit.settings.sharding_strategy)), ", since the world size is 1");
  if (std::count(warnings.begin(), warnings.end(), warning) == 0) warnings.push_back(std::move(warning));
}

bool HasParts(const Partition& partition) {
  const auto is_part = [](const auto& parameter) { return parameter->part.has_value(); };
  return std::any_of(partition.units.begin(), partition.units.end(), [&](const UnitModule& unit) {
    return std::any_of(unit.parameters.begin(), unit.parameters.end(), is_part);
  });
}

// State dicts find a rank's part by its rank: equal parts, in the order of the ranks.
absl::Status CheckParts(const Unit& unit) {
  const int ranks = unit.groups.tensor_parallel_size();
  for (const auto& parameter : unit.parameters) {
    if (!parameter->part) continue;
    const ParameterPart& part = *parameter->part;
    const bool has_dim = part.dim >= 0 && part.dim < parameter->shape.rank();
    const int64_t size = has_dim ? parameter->shape.dim(part.dim) : 0;
    std::vector<int64_t> whole(parameter->shape.dims().begin(), parameter->shape.dims().end());
    if (has_dim) whole[part.dim] *= ranks;
    if (has_dim && std::equal(whole.begin(), whole.end(), part.whole.dims().begin(), part.whole.dims().end()) &&
        part.begin == unit.groups.tensor_parallel_rank() * size)
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter->fqn, "\" ", parameter->shape.ToString(), " is the part from ",
                     part.begin, " on of dimension ", part.dim, " of ", part.whole.ToString(), ", which is not part ",
                     unit.groups.tensor_parallel_rank(), " of ", ranks,
                     " equal ones: make parallel layers on the group of the dimension that the submesh leaves out"));
  }
  return absl::OkStatus();
}

// The unit's own groups, if it has any, else the model's groups for its strategy. State dicts join the shards of all
// ranks of the model, so groups of fewer ranks would lose parameters.
absl::StatusOr<UnitGroups> GroupsOf(const Unit& unit, const ShardGroups& of_model) {
  const std::optional<UnitProcessGroup>& own = unit.settings.process_group;
  if (!own.has_value()) return of_model.Of(unit.settings.sharding_strategy);
  const ShardGroups groups =
      own->replicate == nullptr ? ShardGroups(own->shard) : ShardGroups(std::pair(own->shard, own->replicate));
  const AllRanks ranks(groups), wanted(of_model);
  if (ranks.size() != wanted.size() || ranks.rank() != wanted.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process_group of unit ", unit.display_name(), ": this is rank ", ranks.rank(), " of ",
                     ranks.size(), ", of the model rank ", wanted.rank(), " of ", wanted.size(),
                     ": expected the model's ranks in their order, as one group or as shard group times replicate "
                     "group"));
  }
  absl::StatusOr<UnitGroups> made = groups.Of(unit.settings.sharding_strategy);
  return made.ok() ? made : Annotate(made.status(), absl::StrCat("process_group of unit ", unit.display_name()));
}

// Sets reduce dtype and layout from settings, groups, parameters and their dtypes.
absl::Status Lay(Unit& unit) {
  std::vector<ShardLayout::Entry> entries;
  for (const auto& parameter : unit.parameters) {
    FSDP_ASSIGN_OR_RETURN(const int dim, ShardDimOf(unit.settings.shard_placement_fn, *parameter, parameter->fqn,
                                                    unit.groups.shard_world_size()));
    entries.push_back({parameter->fqn, parameter->shape, 0, dim});
  }
  unit.reduce_dtype = unit.settings.reduce_dtype.value_or(unit.compute_dtype);
  unit.layout = ShardLayout(std::move(entries), {.world_size = unit.groups.shard_world_size(),
                                                 .kind = unit.settings.layout,
                                                 .forward_dtype = unit.compute_dtype});
  return absl::OkStatus();
}

absl::Status Allocate(Device& host, Stream& stream, Unit& unit) {
  FSDP_ASSIGN_OR_RETURN(unit.shard, unit.AllocateShard(unit.layout.shard_numel(), unit.dtype, host));
  if (unit.offloaded()) return absl::OkStatus();
  // AdamW and SGD have a kernel that writes the low-precision copy only for this pair of dtypes.
  const bool casts = unit.settings.optimizer_casts.value_or(stream.device().type() != DeviceType::kCpu);
  if (casts && unit.trainable() && unit.dtype == DType::kFloat32 && unit.compute_dtype == DType::kBFloat16) {
    FSDP_ASSIGN_OR_RETURN(unit.compute_shard, unit.AllocateShard(unit.layout.shard_numel(), unit.compute_dtype, host));
  }
  stream.device().ops().Zero(unit.shard, stream);
  return absl::OkStatus();
}

// Moves `buffer` to the stream's device, floating-point ones in `dtype`. Blocks.
absl::Status PlaceBuffer(DType dtype, Stream& stream, ModuleBuffer& buffer) {
  if (!buffer.data.defined()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(Tensor placed, Tensor::Empty(stream.device(), buffer.data.dtype(), buffer.data.shape()));
  stream.CopyAsync(placed.data(), buffer.data.data(), placed.nbytes());
  if (IsFloatingPoint(placed.dtype()) && placed.dtype() != dtype) {
    FSDP_ASSIGN_OR_RETURN(Tensor cast, Tensor::Empty(stream.device(), dtype, placed.shape()));
    stream.device().ops().CastDivide(placed, cast, 1, stream);
    placed = std::move(cast);
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  buffer.data = std::move(placed);
  return absl::OkStatus();
}

// If a parameter is cut on another dimension than 0, readers see this rank's part as a part of a larger tensor: states
// list its elements as for a parallel layer's parameter.
void DescribePart(const Unit& unit, size_t index, ShardedParameter& sharded) {
  const Parameter& parameter = *unit.parameters[index];
  const int dim = unit.layout.parameters()[index].dim;
  std::vector<int64_t> dims(parameter.shape.dims().begin(), parameter.shape.dims().end());
  dims[dim] /= unit.layout.world_size();
  sharded.part = ParameterPart{parameter.shape, dim, unit.groups.shard_rank() * dims[dim]};
  sharded.shape = *Shape::Create(dims);
}

// The values of one slice of the shard. Blocks.
absl::Status FillSlice(const Unit& unit, size_t index, uint64_t seed, Stream& stream) {
  for (const ShardLayout::Slice& run : unit.layout.ShardRuns(index, unit.groups.shard_rank())) {
    const Tensor values = unit.shard.Slice({run.offset_in_shard, run.end_in_shard()});
    FSDP_RETURN_IF_ERROR(CopyInitialValues(*unit.parameters[index], run.interval, seed, values, stream));
  }
  return absl::OkStatus();
}

// Makes the views of the shard that an optimizer sees, and gives them their first values. Blocks.
absl::Status FillShard(uint64_t seed, Device& host, Stream& stream, Unit& unit) {
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    Parameter& parameter = *unit.parameters[i];
    const ShardLayout::Slice slice = unit.layout.ShardSlice(i, unit.groups.shard_rank());
    const Interval in_shard{slice.offset_in_shard, slice.end_in_shard()};
    auto sharded = std::make_unique<ShardedParameter>();
    sharded->fqn = parameter.fqn;
    sharded->shape = parameter.shape;
    sharded->part = parameter.part;
    if (!unit.layout.is_cut_by_rows(i)) DescribePart(unit, i, *sharded);
    sharded->interval = slice.interval;
    sharded->requires_grad = parameter.requires_grad;
    sharded->data = unit.shard.Slice(in_shard);
    if (unit.compute_shard.defined()) sharded->compute_copy = unit.compute_shard.Slice(in_shard);
    sharded->device = unit.offloaded() ? &host : &stream.device();
    FSDP_RETURN_IF_ERROR(FillSlice(unit, i, seed, stream));
    unit.sharded_parameters.push_back(std::move(sharded));
    // Unbound until the first unshard, so that a read of a sharded parameter is an error.
    parameter.data = Tensor();
    parameter.grad = Tensor();
    parameter.sharded = true;
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Unit*> Unit::Parts() {
  std::vector<Unit*> parts = {this};
  parts.insert(parts.end(), dtype_groups.begin(), dtype_groups.end());
  return parts;
}

bool Unit::any_trainable() {
  const std::vector<Unit*> parts = Parts();
  return std::any_of(parts.begin(), parts.end(), [](const Unit* part) { return part->trainable(); });
}

bool Unit::trainable() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->requires_grad; });
}

void Unit::MarkShardChanged() const {
  for (const auto& parameter : sharded_parameters) parameter->MarkChanged();
}

int64_t Unit::shard_version() const {
  int64_t version = 0;
  for (const auto& parameter : sharded_parameters) version += parameter->version;
  return version;
}

bool UnitStore::shards_are_dim0_chunks() const {
  if (is_tensor_parallel()) return false;
  return std::all_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return !unit->layout.is_flat() && unit->layout.is_cut_by_rows(); });
}

absl::StatusOr<std::unique_ptr<UnitStore>> UnitStore::Create(Partition partition, const ModelSettings& settings,
                                                             ShardGroups groups, const ParameterInit& init) {
  std::unique_ptr<UnitStore> store(new UnitStore(std::move(groups)));
  store->host_ = CreateHostDevice();
  if (HasParts(partition)) FSDP_RETURN_IF_ERROR(store->groups_.UseTensorParallelism());
  FSDP_RETURN_IF_ERROR(store->groups_.AllReduceStatus(store->Adopt(partition, settings)));
  FSDP_RETURN_IF_ERROR(RankAgreement::Of(*store, settings, init).Check(store->groups_));
  FSDP_RETURN_IF_ERROR(store->SplitPostForwardGroups());
  FSDP_RETURN_IF_ERROR(store->groups_.AllReduceStatus(store->Fill(partition, init)));
  return store;
}

// Gives every unit memory and first values, then moves the buffers to the device.
absl::Status UnitStore::Fill(const Partition& partition, const ParameterInit& init) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device().CreateStream("init"));
  for (const auto& owned : units_) {
    Unit& unit = *owned;
    absl::Status made =
        MaterializeUnit(unit, unit.settings.param_init_fn ? unit.settings.param_init_fn : init.param_init_fn);
    if (init.sync_module_states) {
      // The broadcast is collective, so an error of one rank's function must reach all ranks before it.
      FSDP_RETURN_IF_ERROR(groups_.AllReduceStatus(made));
      made = SyncParameters(unit, unit.groups, init.seed, *stream);
      if (made.ok()) made = SyncCopies(unit, groups_.tensor_parallel(), *stream);
    }
    FSDP_RETURN_IF_ERROR(made);
    FSDP_RETURN_IF_ERROR(Allocate(*host_, *stream, unit));
    FSDP_RETURN_IF_ERROR(FillShard(init.seed, *host_, *stream, unit));
    if (unit.trainable()) FSDP_RETURN_IF_ERROR(unit.LayGradients(*host_, *stream));
  }
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  if (init.sync_module_states && !units_.empty()) {
    std::vector<Tensor> buffers;
    for (const auto& buffer : partition.buffers) buffers.push_back(buffer->data);
    FSDP_RETURN_IF_ERROR(BroadcastTensors(buffers, units_[0]->groups, *stream));
    if (is_tensor_parallel()) {
      FSDP_RETURN_IF_ERROR(
          BroadcastTensors(buffers, {.shard = groups_.tensor_parallel(), .replicate = nullptr}, *stream));
    }
  }
  for (const auto& buffer : partition.buffers) FSDP_RETURN_IF_ERROR(PlaceBuffer(buffer->dtype, *stream, *buffer));
  for (const auto& unit : units_) {
    const std::optional<DType>& low = unit->settings.buffer_dtype;
    if (!low.has_value()) continue;
    for (Module* module : unit->own_modules) {
      for (const auto& [name, buffer] : module->own_buffers())
        FSDP_RETURN_IF_ERROR(PlaceBuffer(*low, *stream, *buffer));
    }
  }
  return absl::OkStatus();
}

// Splits the shard group into blocks of consecutive ranks, once for each size that a unit asks for.
absl::Status UnitStore::SplitPostForwardGroups() {
  std::map<std::pair<ProcessGroup*, int>, std::shared_ptr<ProcessGroup>> made;
  for (const auto& unit : units_) {
    const int size = unit->settings.post_forward_group_size;
    if (size <= 1 || !unit->sharded() || size >= unit->groups.shard_world_size()) continue;
    ProcessGroup& shard = *unit->groups.shard;
    // Two units may share a group and a size, and must then share the split group: Split is collective.
    std::shared_ptr<ProcessGroup>& group = made[{&shard, size}];
    if (group == nullptr) {
      FSDP_ASSIGN_OR_RETURN(group, shard.Split(/*color=*/shard.rank() / size, /*key=*/shard.rank()));
    }
    unit->post_forward_group = group;
  }
  return absl::OkStatus();
}

absl::Status UnitStore::Adopt(Partition& partition, const ModelSettings& settings) {
  const ShardingStrategy root_strategy =
      settings.units.empty() ? ShardingStrategy::kFullShard : settings.units[0].sharding_strategy;
  root_group_ = groups_.RootGroup(root_strategy);
  for (const auto& [name, parameter] : partition.unmanaged) {
    if (!parameter->part) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", name, "\" is a part of a larger tensor ", parameter->part->whole.ToString(),
                     " and is ignored: expected it in a unit, since ignored parameters are whole on every rank"));
  }
  aliases_ = partition.aliases;
  unmanaged_ = partition.unmanaged;
  warnings_ = partition.warnings;
  std::vector<std::pair<int, DTypeGroup>> others;  // by unit
  for (size_t u = 0; u < partition.units.size(); ++u) {
    UnitModule& unit = partition.units[u];
    FSDP_ASSIGN_OR_RETURN(std::vector<DTypeGroup> by_dtype, ByDType(unit, settings.units[u]));
    for (size_t d = 1; d < by_dtype.size(); ++d) others.emplace_back(static_cast<int>(u), std::move(by_dtype[d]));
    FSDP_RETURN_IF_ERROR(AdoptUnit(std::move(unit), settings.units[u], std::move(by_dtype[0])));
  }
  for (auto& [unit, group] : others) FSDP_RETURN_IF_ERROR(AdoptDTypeGroup(unit, std::move(group)));
  AdoptBare(partition, settings.bare);
  return absl::OkStatus();
}

absl::Status UnitStore::AdoptUnit(UnitModule module, const UnitSettings& settings, DTypeGroup group) {
  module.parameters = std::move(group.parameters);
  auto unit = std::make_unique<Unit>(std::move(module));
  unit->settings = settings;
  unit->dtype = group.dtype;
  unit->compute_dtype = group.compute_dtype;
  FSDP_ASSIGN_OR_RETURN(unit->groups, GroupsOf(*unit, groups_));
  unit->groups.tensor_parallel = groups_.tensor_parallel();
  if (unit->settings.gradient_rules == GradientRules::kFsdp1) WarnOfNoShard(*unit, warnings_);
  unit->strategy = unit->sharded() ? unit->settings.sharding_strategy : ShardingStrategy::kNoShard;
  FSDP_RETURN_IF_ERROR(CheckParts(*unit));
  FSDP_RETURN_IF_ERROR(Lay(*unit));
  for (const Module* one : unit->modules) index_[one] = size();
  units_.push_back(std::move(unit));
  return absl::OkStatus();
}

// Its `module` is the unit's, so that what visits the units of a module visits the group too.
absl::Status UnitStore::AdoptDTypeGroup(int index, DTypeGroup group) {
  Unit& of = unit(index);
  UnitModule module;
  module.name = absl::StrCat(of.display_name(), " (", std::string(DTypeName(group.dtype)), ")");
  module.module = of.module;
  FSDP_RETURN_IF_ERROR(AdoptUnit(std::move(module), of.settings, std::move(group)));
  of.dtype_groups.push_back(units_.back().get());
  units_.back()->dtype_group_of = index;
  return absl::OkStatus();
}

void UnitStore::AdoptBare(const Partition& partition, const std::vector<UnitSettings>& settings) {
  const int num_units = static_cast<int>(partition.units.size());  // without dtype groups
  std::map<int, int> scheduled;                                    // from an index of the partition to one of schedules
  // Those that recompute come first, because schedules have only them.
  for (const bool recomputes : {true, false}) {
    for (size_t b = 0; b < partition.bare.size(); ++b) {
      const UnitModule& made = partition.bare[b];
      const UnitSettings& of_bare = settings[b];
      if ((of_bare.activation_checkpointing && made.modules.size() == 1) != recomputes) continue;
      if (recomputes) scheduled[num_units + static_cast<int>(b)] = size() + num_scheduled_bare_++;
      for (const Module* module : made.modules) index_[module] = size() + static_cast<int>(bare_.size());
      bare_.push_back({made.display_name(), made.modules, of_bare});
    }
  }
  for (UnitVisit visit : partition.registration_order) {
    if (visit.unit >= num_units) {
      const auto found = scheduled.find(visit.unit);
      if (found == scheduled.end()) continue;
      visit.unit = found->second;
    }
    registration_order_.push_back(visit);
  }
}

std::vector<std::string> UnitStore::ScheduledNames() const {
  std::vector<std::string> names;
  for (const auto& unit : units_) names.push_back(unit->display_name());
  for (int b = 0; b < num_scheduled_bare_; ++b) names.push_back(bare_[b].name);
  return names;
}

int UnitStore::IndexOf(const Module& module) const {
  const int index = WrappedIndexOf(module);
  return is_unit(index) ? index : -1;
}

int UnitStore::ScheduledIndexOf(const Module& module) const {
  const int index = WrappedIndexOf(module);
  return index < num_scheduled() ? index : -1;
}

int UnitStore::WrappedIndexOf(const Module& module) const {
  const auto found = index_.find(&module);
  return found == index_.end() ? -1 : found->second;
}

const std::vector<Module*>& UnitStore::ModulesOf(int index) const {
  return is_unit(index) ? unit(index).modules : bare_[index - size()].modules;
}

std::string UnitStore::NameOf(const Module& module) const {
  const int index = WrappedIndexOf(module);
  return is_unit(index) ? "unit " + unit(index).display_name() : "module " + bare_[index - size()].name;
}

}  // namespace fsdp
