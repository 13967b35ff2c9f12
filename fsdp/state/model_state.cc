// SPDX-License-Identifier: Apache-2.0
//
// Saving: for LOCAL, each parameter's slice as it is; for FULL and SHARDED, gather a unit, copy each parameter out,
// continue with the next unit (StateGather). It may be that only rank 0 receives, but every rank gathers.
//
// Loading goes in three steps, so that an error leaves the model as it was:
//
//   check    each tensor that the state dict has against what this rank needs; the ranks agree on the first error
//   compare  names, over all ranks, since a name that one rank lacks is missing for all of them
//   run      copy or exchange (StateScatter) in the order of the units, which is the same on all ranks
//
// A parameter with several names may be saved under any of them. ModelEntries resolves aliases to the first name, and
// prefers a tensor that is saved under that name.
#include "fsdp/fsdp/state/model_state.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/state_check.h"
#include "fsdp/fsdp/state/state_scatter.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// A state dict's tensors by the model's names; a shared parameter may be saved under any of its names.
class ModelEntries {
 public:
  ModelEntries(const UnitStore& units, const StateDict& state) {
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (key.section != StateKey::Section::kModel || tensor == nullptr) continue;
      const auto alias = units.aliases().find(key.fqn);
      if (alias == units.aliases().end()) {
        by_name_[key.fqn] = tensor;
        names_.push_back(key.fqn);
      } else {
        // emplace: a tensor under the first name, which is assigned above, is never replaced.
        by_name_.emplace(alias->second, tensor);
      }
    }
  }

  const ShardedTensor* Find(const std::string& fqn) const {
    const auto found = by_name_.find(fqn);
    return found == by_name_.end() ? nullptr : found->second;
  }

  // The state dict's names compared with the model's.
  IncompatibleKeys Compare(const std::vector<std::string>& model) const {
    IncompatibleKeys keys;
    for (const std::string& fqn : model) {
      if (by_name_.count(fqn) == 0) keys.missing_keys.push_back(fqn);
    }
    const std::set<std::string> known(model.begin(), model.end());
    for (const std::string& name : names_) {
      if (known.count(name) == 0) keys.unexpected_keys.push_back(name);
    }
    return keys;
  }

 private:
  std::map<std::string, const ShardedTensor*> by_name_;
  std::vector<std::string> names_;  // without further names of shared parameters
};

// One load: the model's values, the state dict's, and the names that are loaded.
class ModelLoad {
 public:
  ModelLoad(const UnitStore& units, std::vector<ReplicatedTensor> replicated, const StateDict& state, StateSource from)
      : units_(units), replicated_(std::move(replicated)), entries_(units, state), from_(from) {}

  IncompatibleKeys Keys() const {
    std::vector<std::string> names;
    for (const auto& unit : units_.units()) {
      for (const auto& parameter : unit->parameters) names.push_back(parameter->fqn);
    }
    for (const ReplicatedTensor& tensor : replicated_) names.push_back(tensor.fqn);
    return entries_.Compare(names);
  }

  // Every tensor of the model that the state dict has must be loadable. Local.
  absl::Status Check(const AllRanks& ranks) const {
    for (const auto& unit : units_.units()) {
      for (size_t i = 0; i < unit->parameters.size(); ++i) {
        const WantedTensor wanted = WantedOf(*unit, i, from_, unit->dtype);
        FSDP_RETURN_IF_ERROR(CheckOne(unit->parameters[i]->fqn, wanted, ranks));
      }
    }
    for (const ReplicatedTensor& tensor : replicated_) {
      const WantedTensor wanted = WantedWhole(tensor.data.shape(), from_, tensor.data.dtype());
      FSDP_RETURN_IF_ERROR(CheckOne(tensor.fqn, wanted, ranks));
    }
    return absl::OkStatus();
  }

  // Loads all but `missing`.
  absl::Status Run(const std::vector<std::string>& missing) const {
    const std::set<std::string> left_out(missing.begin(), missing.end());
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units_));
    StateScatter scatter(units_, *gather, from_);
    for (int u = 0; u < units_.size(); ++u) {
      const Unit& unit = units_.unit(u);
      unit.MarkShardChanged();  // first, so that it is also true of a load that fails half way
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        const Parameter& parameter = *unit.parameters[i];
        if (left_out.count(parameter.fqn) != 0) continue;
        FSDP_RETURN_IF_ERROR(
            scatter.Add(u, i, TensorOf(parameter.fqn, parameter.whole_shape()), unit.sharded_parameters[i]->data));
      }
    }
    for (const ReplicatedTensor& tensor : replicated_) {
      if (left_out.count(tensor.fqn) != 0) continue;
      FSDP_RETURN_IF_ERROR(scatter.AddReplicated(TensorOf(tensor.fqn, tensor.data.shape()), tensor.data));
    }
    FSDP_RETURN_IF_ERROR(scatter.Flush());
    return gather->Synchronize();
  }

 private:
  absl::Status CheckOne(const std::string& fqn, const WantedTensor& wanted, const AllRanks& ranks) const {
    const ShardedTensor* source = entries_.Find(fqn);
    return source == nullptr ? absl::OkStatus() : CheckWanted(StateKey::Model(fqn), *source, wanted, ranks);
  }

  // The tensor to load; with a shape and no elements on a rank that does not have the state dict (kFullFirst).
  ShardedTensor TensorOf(const std::string& fqn, const Shape& shape) const {
    if (const ShardedTensor* source = entries_.Find(fqn)) return *source;
    ShardedTensor nothing;
    nothing.shape = shape;
    return nothing;
  }

  const UnitStore& units_;
  const std::vector<ReplicatedTensor> replicated_;
  const ModelEntries entries_;
  const StateSource from_;
};

// Adds buffers and ignored parameters, aliased unless `form` asks for another dtype or for host memory.
absl::Status AddReplicated(const std::vector<ReplicatedTensor>& tensors, const StateForm& form, StateGather& gather,
                           StateDict& state) {
  for (const ReplicatedTensor& tensor : tensors) {
    if (form.ignore_frozen_params && tensor.frozen) continue;
    Tensor data = tensor.data;
    if (form.type != StateDictType::kLocal && data.dtype() != tensor.dtype) {
      FSDP_ASSIGN_OR_RETURN(data, Tensor::Empty(gather.device(), tensor.dtype, data.shape()));
      FSDP_RETURN_IF_ERROR(gather.Copy(tensor.data, data));
    }
    if (form.offload_to_cpu) {
      FSDP_ASSIGN_OR_RETURN(data, gather.CopyOf(data, /*to_host=*/true));
    }
    const Interval all{0, data.numel()};
    state.Set(StateKey::Model(tensor.fqn),
              LiveSlice(data.shape(), all, data.View({data.numel()}), gather.ranks().rank()));
  }
  return absl::OkStatus();
}

absl::Status AddGathered(const UnitStore& units, const StateForm& form, StateGather& gather, StateDict& state) {
  for (int u = 0; u < units.size(); ++u) {
    const Unit& unit = units.unit(u);
    if (form.ignore_frozen_params && !unit.trainable()) continue;
    FSDP_RETURN_IF_ERROR(gather.Gather(u, unit.shard));
    // Other ranks only gather: Extract copies, and they have no use for the copies.
    for (size_t i = 0; form.ReceivedBy(gather.ranks().rank()) && i < unit.parameters.size(); ++i) {
      if (form.ignore_frozen_params && !unit.parameters[i]->requires_grad) continue;
      FSDP_ASSIGN_OR_RETURN(ShardedTensor tensor, gather.Extract(i, form));
      state.Set(StateKey::Model(unit.parameters[i]->fqn), std::move(tensor));
    }
  }
  return absl::OkStatus();
}

// Adds this rank's slices, aliased unless `form` asks for host memory.
absl::Status AddLocal(const UnitStore& units, const StateForm& form, StateGather& gather, StateDict& state) {
  for (const auto& unit : units.units()) {
    if (!form.offload_to_cpu) unit->MarkShardChanged();  // the caller may write to what it is given
    for (size_t i = 0; i < unit->sharded_parameters.size(); ++i) {
      const auto& parameter = unit->sharded_parameters[i];
      if (form.ignore_frozen_params && !unit->parameters[i]->requires_grad) continue;
      Tensor data = parameter->data;
      if (form.offload_to_cpu && !parameter->interval.empty()) {
        FSDP_ASSIGN_OR_RETURN(data, gather.CopyOf(data, /*to_host=*/true));
      }
      state.Set(StateKey::Model(parameter->fqn), LiveSlicesOf(*parameter, data, ShardReplica(*unit, i)));
    }
  }
  return absl::OkStatus();
}

// Removes the frozen parameters from a state's aliases and layouts; in a layout they leave a gap, as padding does.
void LeaveOutFrozen(const UnitStore& units, StateDict& state) {
  std::set<std::string> frozen;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) {
      if (!parameter->requires_grad) frozen.insert(parameter->fqn);
    }
  }
  std::erase_if(state.aliases, [&](const auto& alias) { return frozen.count(alias.second) != 0; });
  for (FlatUnitLayout& unit : state.units) {
    std::erase_if(unit.parameters, [&](const auto& entry) { return frozen.count(entry.fqn) != 0; });
  }
  std::erase_if(state.units, [](const FlatUnitLayout& unit) { return unit.parameters.empty(); });
}

absl::Status NoMemory(const char* what, const std::string& name) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " \"", name, "\" has no memory, so no state dict can hold it; materialise it first"));
}

void AddNew(const std::vector<std::string>& names, std::vector<std::string>& all) {
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
}

// The names that are missing or unexpected on any rank, or only rank 0's if `first_only`. `mine` are this rank's. A
// name that is missing on one rank cannot be loaded on any: its unit is exchanged by all ranks or by no rank. So the
// lists are gathered and joined, keeping the order of the first rank that has a name. Collective; blocks.
absl::StatusOr<IncompatibleKeys> UnionOfKeys(const AllRanks& ranks, const IncompatibleKeys& mine, bool first_only) {
  // array(): braces around two lists of two strings would make an object of them.
  const nlohmann::json names = nlohmann::json::array({mine.missing_keys, mine.unexpected_keys});
  const std::vector<std::uint8_t> packed = nlohmann::json::to_msgpack(names);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ranks.AllGatherObject(std::string(packed.begin(), packed.end())));
  IncompatibleKeys all;
  for (size_t rank = 0; rank < (first_only ? 1 : blobs.size()); ++rank) {
    const nlohmann::json part = nlohmann::json::from_msgpack(blobs[rank], /*strict=*/true, /*allow_exceptions=*/false);
    if (!part.is_array() || part.size() != 2) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " sent no list of names; ranks must load at the same time"));
    }
    AddNew(part[0].get<std::vector<std::string>>(), all.missing_keys);
    AddNew(part[1].get<std::vector<std::string>>(), all.unexpected_keys);
  }
  return all;
}

}  // namespace

StateDict EmptyStateDict(const UnitStore& units) {
  StateDict state;
  state.aliases = units.aliases();
  if (units.is_tensor_parallel()) return state;  // a flat layout of parts says nothing about the whole tensors
  for (const auto& unit : units.units()) {
    if (unit->layout.is_flat()) state.units.push_back(unit->layout.ToUnitLayout(unit->name));
  }
  return state;
}

absl::StatusOr<StateDict> GetModelState(Module& root, const UnitStore& units, const StateForm& form) {
  FSDP_RETURN_IF_ERROR(CheckLocalIsOfNoMesh(units, form.type));
  FSDP_ASSIGN_OR_RETURN(const std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  // A rank that does not receive has an empty state dict, but takes part in every gather.
  const bool receives = form.ReceivedBy(gather->ranks().rank());
  StateDict state = receives ? EmptyStateDict(units) : StateDict();
  if (form.ignore_frozen_params) LeaveOutFrozen(units, state);
  state.type = form.type;
  if (form.type == StateDictType::kLocal) {
    FSDP_RETURN_IF_ERROR(AddLocal(units, form, *gather, state));
  } else {
    FSDP_RETURN_IF_ERROR(AddGathered(units, form, *gather, state));
  }
  if (receives) FSDP_RETURN_IF_ERROR(AddReplicated(replicated, form, *gather, state));
  FSDP_RETURN_IF_ERROR(gather->Synchronize());
  return state;
}

StateSource SourceOf(StateDictType type, const LoadStateDictOptions& options) {
  switch (type) {
    case StateDictType::kFull:
      return options.broadcast_from_rank0 ? StateSource::kFullFirst : StateSource::kFull;
    case StateDictType::kLocal:
      return StateSource::kLocal;
    case StateDictType::kSharded:
      break;
  }
  return StateSource::kSharded;
}

StateSource SourceOf(const StateDictSettings& settings, const LoadStateDictOptions& options) {
  LoadStateDictOptions of_optim = options;
  of_optim.broadcast_from_rank0 |= FormOf(settings.optim_state_dict_config()).rank0_only;
  return SourceOf(settings.type(), of_optim);
}

absl::StatusOr<IncompatibleKeys> LoadModelState(Module& root, const UnitStore& units, const StateDict& state,
                                                StateDictType type, const LoadStateDictOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckLocalIsOfNoMesh(units, type));
  if (options.broadcast_from_rank0 && type != StateDictType::kFull) {
    return absl::InvalidArgumentError("broadcast_from_rank0 is for FULL state dicts: rank 0 has no others' shards");
  }
  const AllRanks ranks(units.groups());
  const StateSource from = SourceOf(type, options);
  // A rank that is sent the state dict compares with an empty one, so a state dict that it passed changes nothing.
  const bool looked_at = from != StateSource::kFullFirst || ranks.rank() == 0;
  FSDP_ASSIGN_OR_RETURN(std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  const StateDict nothing;
  const ModelLoad load(units, std::move(replicated), looked_at ? state : nothing, from);
  absl::Status checked = load.Check(ranks);
  IncompatibleKeys keys = load.Keys();
  if (from != StateSource::kLocal) {
    FSDP_RETURN_IF_ERROR(ranks.AllReduceStatus(checked));
    FSDP_ASSIGN_OR_RETURN(keys, UnionOfKeys(ranks, keys, from == StateSource::kFullFirst));
  }
  FSDP_RETURN_IF_ERROR(checked);
  if (options.strict) FSDP_RETURN_IF_ERROR(keys.ToStatus("state dict"));
  FSDP_RETURN_IF_ERROR(load.Run(keys.missing_keys));
  return keys;
}

absl::StatusOr<StateDict> LiveModelState(Module& root, const UnitStore& units, const StateDictOptions& options) {
  const StateForm form{.type = StateDictType::kLocal, .ignore_frozen_params = options.ignore_frozen_params};
  FSDP_ASSIGN_OR_RETURN(const std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  StateDict state = EmptyStateDict(units);
  if (form.ignore_frozen_params) LeaveOutFrozen(units, state);
  state.type = form.type;
  FSDP_RETURN_IF_ERROR(AddLocal(units, form, *gather, state));
  FSDP_RETURN_IF_ERROR(AddReplicated(replicated, form, *gather, state));
  return state;
}

ShardedTensor LiveSlicesOf(const ShardedParameter& parameter, const Tensor& slice, int replica) {
  const Interval& interval = parameter.interval;
  if (!parameter.part) return LiveSlice(parameter.shape, interval, slice, replica);
  ShardedTensor tensor;
  tensor.dtype = slice.dtype();
  tensor.shape = parameter.whole_shape();
  tensor.replica = replica;
  for (const IntervalCopy& run : RunsInWhole(parameter.shape, *parameter.part, interval)) {
    const int64_t at = run.from - interval.begin;
    tensor.shards.push_back({{run.to, run.to + run.numel}, slice.Slice({at, at + run.numel})});
  }
  return tensor;
}

// As in PyTorch: a mesh describes tensors that are cut by dimensions, and flat shards are not. Tensor parallelism needs
// a mesh.
absl::Status CheckLocalIsOfNoMesh(const UnitStore& units, StateDictType type) {
  if (type != StateDictType::kLocal || !units.groups().from_mesh()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a LOCAL state dict of a model that was made with a DeviceMesh is not supported; ask for SHARDED or FULL");
}

absl::Status CheckLocalIsFlat(const UnitStore& units, StateDictType type) {
  if (type != StateDictType::kLocal || !units.is_tensor_parallel()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a LOCAL state dict of a model with tensor parallelism is not supported; ask for SHARDED or FULL");
}

ShardedTensor LiveSlice(const Shape& shape, const Interval& interval, const Tensor& slice, int replica) {
  ShardedTensor tensor;
  tensor.dtype = slice.dtype();
  tensor.shape = shape;
  tensor.replica = replica;
  if (!interval.empty()) tensor.shards.push_back({interval, slice});
  return tensor;
}

// Shared parameters and buffers are found by address, so each is listed once, under its first name.
absl::StatusOr<std::vector<ReplicatedTensor>> ReplicatedTensors(Module& root, const UnitStore& units) {
  std::vector<ReplicatedTensor> tensors;
  std::set<const void*> known;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) known.insert(parameter.get());
  }
  for (const auto& [name, parameter] : root.NamedParameters()) {
    if (!known.insert(parameter.get()).second) continue;
    if (!parameter->data.defined()) return NoMemory("ignored parameter", name);
    tensors.push_back({name, parameter->data, parameter->dtype, !parameter->requires_grad});
  }
  for (const auto& [name, buffer] : root.NamedBuffers()) {
    if (!known.insert(buffer.get()).second || buffer->persistence == BufferPersistence::kNonPersistent) continue;
    if (!buffer->data.defined()) return NoMemory("buffer", name);
    tensors.push_back({name, buffer->data, buffer->dtype});
  }
  return tensors;
}

}  // namespace fsdp
