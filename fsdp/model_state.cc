// SPDX-License-Identifier: Apache-2.0
#include "fsdp/model_state.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace fsdp {
namespace {

// Names that the model has and `state` lacks, and the reverse, as one error.
absl::Status CheckKeys(const UnitStore& units, const StateDict& state) {
  std::vector<std::string> missing, unexpected;
  std::set<std::string> known;
  for (const auto& [alias, name] : units.aliases()) known.insert(alias);
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) {
      known.insert(parameter->fqn);
      if (state.FindTensor(StateKey::Model(parameter->fqn)) == nullptr) missing.push_back(parameter->fqn);
    }
  }
  for (const auto& [key, value] : state.entries()) {
    if (key.section == StateKey::Section::kModel && known.count(key.fqn) == 0) unexpected.push_back(key.fqn);
  }
  if (missing.empty() && unexpected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("state dict does not fit the model; missing: [",
                                                 absl::StrJoin(missing, ", "), "]; unexpected: [",
                                                 absl::StrJoin(unexpected, ", "), "]"));
}

absl::Status CheckState(const UnitStore& units, const ProcessGroup& group, const StateDict& state, StateDictType type) {
  RETURN_IF_ERROR(CheckKeys(units, state));
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) {
      const StateKey key = StateKey::Model(parameter->fqn);
      RETURN_IF_ERROR(CheckForm(key, *state.FindTensor(key), parameter->shape, type, group));
    }
  }
  return absl::OkStatus();
}

}  // namespace

GatherForm FormOf(const StateDictConfig& config) {
  if (const auto* full = std::get_if<FullStateDictConfig>(&config)) {
    return {StateDictType::kFull, full->offload_to_cpu, full->rank0_only};
  }
  return {StateDictType::kSharded, std::get<ShardedStateDictConfig>(config).offload_to_cpu, false};
}

StateDict EmptyStateDict(const UnitStore& units) {
  StateDict state;
  state.aliases = units.aliases();
  for (const auto& unit : units.units()) {
    if (unit->layout.is_flat()) state.units.push_back(unit->layout.ToUnitLayout(unit->name));
  }
  return state;
}

absl::StatusOr<StateDict> GetModelState(const UnitStore& units, ProcessGroup& group, const GatherForm& form) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units, group));
  const bool receives = gather->Receives(form);
  StateDict state = receives ? EmptyStateDict(units) : StateDict();
  state.type = form.type;
  for (int u = 0; u < units.size(); ++u) {
    const Unit& unit = units.unit(u);
    gather->Gather(u, unit.shard);
    for (size_t i = 0; receives && i < unit.parameters.size(); ++i) {
      ASSIGN_OR_RETURN(ShardedTensor tensor, gather->Extract(i, form));
      state.Set(StateKey::Model(unit.parameters[i]->fqn), std::move(tensor));
    }
  }
  RETURN_IF_ERROR(gather->Synchronize());
  return state;
}

absl::Status LoadModelState(const UnitStore& units, ProcessGroup& group, const StateDict& state, StateDictType type) {
  RETURN_IF_ERROR(AgreeOn(group, CheckState(units, group, state, type)));
  ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units, group));
  for (int u = 0; u < units.size(); ++u) {
    const Unit& unit = units.unit(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const ShardedTensor& source = *state.FindTensor(StateKey::Model(unit.parameters[i]->fqn));
      RETURN_IF_ERROR(gather->Scatter(u, i, source, type, unit.sharded_parameters[i]->data));
    }
  }
  return gather->Synchronize();
}

StateDict LiveModelState(const UnitStore& units) {
  StateDict state = EmptyStateDict(units);
  state.type = StateDictType::kLocal;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->sharded_parameters) {
      state.Set(StateKey::Model(parameter->fqn), LiveSlice(parameter->shape, parameter->interval, parameter->data));
    }
  }
  return state;
}

ShardedTensor LiveSlice(const Shape& shape, const Interval& interval, const Tensor& slice) {
  ShardedTensor tensor;
  tensor.dtype = slice.dtype();
  tensor.shape = shape;
  if (!interval.empty()) tensor.shards.push_back({interval, slice});
  return tensor;
}

absl::Status CheckForm(const StateKey& key, const ShardedTensor& source, const Shape& shape, StateDictType type,
                       const ProcessGroup& group) {
  if (source.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", key.ToString(), "\": shape ", source.shape.ToString(),
                                                   " in the state dict != ", shape.ToString(), " in the model"));
  }
  const Interval wanted =
      type == StateDictType::kFull ? Interval{0, shape.numel()} : Dim0Chunk(shape, group.size(), group.rank());
  const Interval held = source.shards.empty() ? Interval{wanted.begin, wanted.begin} : source.shards[0].interval;
  if (source.shards.size() > 1 || held != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", key.ToString(), "\": elements ", held.ToString(), " on rank ", group.rank(), " of ", group.size(),
        " are not the ", wanted.ToString(), " that a ", std::string(StateDictTypeName(type)), " state dict has"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
