// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor/convert.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// True when some parameter below `module` lies in no wrapped module further inside.
bool OwnsParameters(const Module& module, const std::map<const Module*, std::string>& wrapped) {
  if (!module.own_parameters().empty()) return true;
  for (const auto& [name, child] : module.children()) {
    if (wrapped.count(child.get()) == 0 && OwnsParameters(*child, wrapped)) return true;
  }
  return false;
}

// What all ranks must have in common, as text.
std::string Fingerprint(const UnitStore& store) {
  std::string text;
  for (const auto& unit : store.units()) {
    absl::StrAppend(&text, unit->display_name(), " ", unit->layout.unsharded_numel(), " ",
                    std::string(DTypeName(unit->dtype)), " ", std::string(DTypeName(unit->compute_dtype)), " ",
                    std::string(DTypeName(unit->reduce_dtype)), "\n");
  }
  return text;
}

absl::Status CheckRanksAgree(const UnitStore& store, ProcessGroup& group) {
  const std::string mine = Fingerprint(store);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.GatherBlobs(mine));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks wrap different models: units (name, elements, dtypes) of rank 0:\n", all[0], "of rank ",
                     rank, ":\n", all[rank]));
  }
  return absl::OkStatus();
}

// Initial values of `slice` of `parameter`, in the unit's dtype, to host memory at `out`.
absl::Status InitialValues(const Parameter& parameter, const Interval& interval, uint64_t seed, void* out) {
  if (parameter.data.defined()) {
    return Convert(parameter.data.dtype(), parameter.data.Slice(interval).data(), parameter.dtype, out,
                   interval.size());
  }
  std::vector<float> values(interval.size());
  parameter.initializer.Fill(seed, parameter.fqn, interval, values.data());
  return Convert(DType::kFloat32, values.data(), parameter.dtype, out, interval.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnitStore>> UnitStore::Create(Module& root, ProcessGroup& group,
                                                             const FsdpOptions& options) {
  std::unique_ptr<UnitStore> store(new UnitStore());
  store->strategy_ = group.size() == 1 ? ShardingStrategy::kNoShard : options.sharding_strategy;
  absl::Status built = store->Partition(root, options);
  for (auto& unit : store->units_) {
    if (built.ok()) built = store->Lay(group, options, *unit);
  }
  RETURN_IF_ERROR(AgreeOn(group, built));
  RETURN_IF_ERROR(CheckRanksAgree(*store, group));

  ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, group.device()->CreateStream("init"));
  absl::Status allocated;
  for (auto& unit : store->units_) {
    if (allocated.ok()) allocated = store->Allocate(group, options, *stream, *unit);
  }
  RETURN_IF_ERROR(AgreeOn(group, allocated));
  return store;
}

absl::Status UnitStore::Partition(Module& root, const FsdpOptions& options) {
  std::map<const Module*, std::string> wrapped{{&root, ""}};
  for (const auto& [name, module] : options.auto_wrap_policy.Apply(root)) wrapped.emplace(module, name);
  RETURN_IF_ERROR(Descend(root, "", -1, wrapped));
  for (const auto& [name, parameter] : root.NamedParameters()) {
    if (name != parameter->fqn) aliases_[name] = parameter->fqn;
  }
  return absl::OkStatus();
}

absl::Status UnitStore::Descend(Module& module, const std::string& path, int enclosing,
                                const std::map<const Module*, std::string>& wrapped) {
  int unit = enclosing;
  const bool is_unit = wrapped.count(&module) != 0 && OwnsParameters(module, wrapped);
  if (is_unit) {
    unit = size();
    units_.push_back(std::make_unique<Unit>());
    units_.back()->name = path;
    units_.back()->module = &module;
    index_[&module] = unit;
    registration_order_.push_back({unit, /*enter=*/true});
  }
  RETURN_IF_ERROR(AdoptParameters(module, path, unit));
  for (const auto& [name, child] : module.children()) {
    RETURN_IF_ERROR(Descend(*child, Join(path, name), unit, wrapped));
  }
  if (is_unit) registration_order_.push_back({unit, /*enter=*/false});
  return absl::OkStatus();
}

absl::Status UnitStore::AdoptParameters(Module& module, const std::string& path, int unit) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    const auto [known, added] = unit_of_.emplace(parameter.get(), unit);
    if (!added && known->second != unit) {
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter->fqn, "\" is shared across units: \"",
                                                     Join(path, name), "\" lies in unit ", units_[unit]->display_name(),
                                                     ", its first name in unit ", units_[known->second]->display_name(),
                                                     "; wrap a module that holds both"));
    }
    if (added) units_[unit]->parameters.push_back(parameter);
  }
  return absl::OkStatus();
}

absl::Status UnitStore::Lay(const ProcessGroup& group, const FsdpOptions& options, Unit& unit) {
  std::vector<FlatLayout::Entry> entries;
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
  unit.compute_dtype = options.mixed_precision.param_dtype.value_or(unit.dtype);
  unit.reduce_dtype = options.mixed_precision.reduce_dtype.value_or(unit.compute_dtype);
  unit.layout = FlatLayout(std::move(entries), {.world_size = shard_world_size(group),
                                                .align_parameters = options.use_orig_params,
                                                .forward_dtype = unit.compute_dtype});
  return absl::OkStatus();
}

absl::Status UnitStore::Allocate(ProcessGroup& group, const FsdpOptions& options, Stream& stream, Unit& unit) {
  const Shape flat{unit.layout.shard_numel()};
  const int64_t nbytes = flat.numel() * SizeOf(unit.dtype);
  ASSIGN_OR_RETURN(Buffer shard, group.Allocate(nbytes));
  ASSIGN_OR_RETURN(Buffer grad_shard, group.Allocate(nbytes));
  unit.shard = Tensor(std::move(shard), unit.dtype, flat);
  unit.grad_shard = Tensor(std::move(grad_shard), unit.dtype, flat);
  const TensorOps& ops = group.device()->ops();
  ops.Zero(unit.shard, stream);
  ops.Zero(unit.grad_shard, stream);

  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    Parameter& parameter = *unit.parameters[i];
    const FlatLayout::Slice slice = unit.layout.ShardSlice(i, shard_rank(group));
    const Interval in_shard{slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()};
    auto sharded = std::make_unique<ShardedParameter>();
    sharded->fqn = parameter.fqn;
    sharded->shape = parameter.shape;
    sharded->interval = slice.interval;
    sharded->data = unit.shard.Slice(in_shard);
    sharded->grad = unit.grad_shard.Slice(in_shard);
    sharded->device = group.device().get();
    ASSIGN_OR_RETURN(Buffer staging, group.device()->AllocatePinned(sharded->data.nbytes()));
    RETURN_IF_ERROR(InitialValues(parameter, slice.interval, options.init_seed, staging.data()));
    stream.CopyAsync(sharded->data.data(), staging.data(), sharded->data.nbytes());
    RETURN_IF_ERROR(stream.Synchronize());
    unit.sharded_parameters.push_back(std::move(sharded));
    parameter.data = Tensor();
    parameter.grad = Tensor();
  }
  return stream.Synchronize();
}

int UnitStore::IndexOf(const Module& module) const {
  const auto found = index_.find(&module);
  return found == index_.end() ? -1 : found->second;
}

int UnitStore::shard_world_size(const ProcessGroup& group) const {
  return strategy_ == ShardingStrategy::kNoShard ? 1 : group.size();
}

int UnitStore::shard_rank(const ProcessGroup& group) const {
  return strategy_ == ShardingStrategy::kNoShard ? 0 : group.rank();
}

}  // namespace fsdp
