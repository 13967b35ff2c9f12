// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim_state.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdp/model_state.h"
#include "nlohmann/json.hpp"
#include "tensor/ops.h"

namespace fsdp {
namespace {

constexpr char kStep[] = "step";

// Where each original parameter is in the optimizer's list.
std::map<std::string, size_t> IndexByName(const Optimizer& optimizer) {
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) index[optimizer.parameters()[i]->fqn] = i;
  return index;
}

Tensor HostScalar(float value) {
  auto* memory = new float(value);
  return Tensor(Buffer(memory, sizeof(float), [memory] { delete memory; }), DType::kFloat32, Shape());
}

// A scalar belongs to the first rank alone where tensors are chunked.
ShardedTensor StepScalar(int64_t steps, const GatherForm& form, const ProcessGroup& group) {
  ShardedTensor scalar;
  scalar.dtype = DType::kFloat32;
  scalar.replica = form.type == StateDictType::kFull ? group.rank() : 0;
  if (form.type == StateDictType::kFull || group.rank() == 0) {
    scalar.shards.push_back({{0, 1}, HostScalar(static_cast<float>(steps)).View({1})});
  }
  return scalar;
}

// The flat shard of one state of a unit, assembled from the optimizer's slices; zero where there is no state.
absl::Status FillShard(const Unit& unit, const std::map<std::string, size_t>& index, const std::string& state_name,
                       Optimizer& optimizer, const TensorOps& ops, const Tensor& shard, Stream& stream) {
  ops.Zero(shard, stream);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const auto found = index.find(unit.parameters[i]->fqn);
    const ShardLayout::Slice slice = unit.layout.ShardSlice(i, unit.groups.shard_rank());
    if (found == index.end() || slice.interval.empty() || optimizer.step_count(found->second) == 0) continue;
    ASSIGN_OR_RETURN(const Tensor state, optimizer.State(found->second, state_name));
    if (!state.defined()) continue;
    const Tensor target = shard.Slice({slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()});
    ops.CastDivide(state, target, 1, stream);
  }
  return absl::OkStatus();
}

// OK when `state` has all of the states of a parameter, or none (`*present`).
absl::Status CheckEntries(const StateDict& state, const std::string& fqn, const std::vector<std::string>& names,
                          bool* present) {
  std::string missing;
  *present = false;
  for (const std::string& name : names) {
    if (state.FindTensor(StateKey::OptimState(fqn, name)) != nullptr) {
      *present = true;
    } else {
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
    }
  }
  if (!*present || missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer state of \"", fqn, "\" lacks ", missing, " though it has others"));
}

std::vector<std::string> AllStateNames(const Optimizer& optimizer) {
  std::vector<std::string> names = optimizer.StateNames();
  names.push_back(kStep);
  return names;
}

// The shape a state of `unit`'s parameter `i` has.
Shape StateShape(const Unit& unit, size_t i, const std::string& name) {
  return name == kStep ? Shape() : unit.parameters[i]->shape;
}

absl::Status CheckState(const UnitStore& units, const ProcessGroup& group, const StateDict& state, StateDictType type,
                        const Optimizer& optimizer) {
  for (const auto& unit : units.units()) {
    for (size_t i = 0; i < unit->parameters.size(); ++i) {
      const std::string& fqn = unit->parameters[i]->fqn;
      bool present = false;
      RETURN_IF_ERROR(CheckEntries(state, fqn, AllStateNames(optimizer), &present));
      if (!present) continue;
      for (const std::string& name : AllStateNames(optimizer)) {
        const StateKey key = StateKey::OptimState(fqn, name);
        RETURN_IF_ERROR(CheckForm(key, *state.FindTensor(key), StateShape(*unit, i, name), type, group));
      }
    }
  }
  return absl::OkStatus();
}

// The step count of a parameter; under kSharded only rank 0 holds it, so it is sent to all.
absl::StatusOr<std::vector<int64_t>> StepCounts(const UnitStore& units, ProcessGroup& group, const StateDict& state) {
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) {
      const ShardedTensor* step = state.FindTensor(StateKey::OptimState(parameter->fqn, kStep));
      const bool held = step != nullptr && !step->shards.empty();
      mine.push_back(held ? static_cast<int64_t>(*step->shards[0].data.data_as<float>()) : int64_t{0});
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.GatherBlobs(mine.dump()));
  const nlohmann::json first = nlohmann::json::parse(all[0], nullptr, /*allow_exceptions=*/false);
  if (!first.is_array() || first.size() != mine.size()) {
    return absl::FailedPreconditionError("ranks hold different parameters");
  }
  return first.get<std::vector<int64_t>>();
}

}  // namespace

GatherForm FormOf(const OptimStateDictConfig& config) {
  if (const auto* full = std::get_if<FullOptimStateDictConfig>(&config)) {
    return {StateDictType::kFull, full->offload_to_cpu, full->rank0_only};
  }
  return {StateDictType::kSharded, std::get<ShardedOptimStateDictConfig>(config).offload_to_cpu, false};
}

absl::Status AddOptimState(const UnitStore& units, ProcessGroup& group, Optimizer& optimizer, const GatherForm& form,
                           StateDict& state) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units, group));
  const std::map<std::string, size_t> index = IndexByName(optimizer);
  const bool receives = gather->Receives(form);
  const TensorOps& ops = group.device()->ops();
  for (int u = 0; u < units.size(); ++u) {
    const Unit& unit = units.unit(u);
    std::vector<int64_t> steps(unit.parameters.size(), 0);
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto found = index.find(unit.parameters[i]->fqn);
      if (found != index.end()) steps[i] = optimizer.step_count(found->second);
    }
    for (const std::string& name : optimizer.StateNames()) {
      ASSIGN_OR_RETURN(const Tensor shard, Tensor::Empty(*group.device(), unit.dtype, unit.shard.shape()));
      RETURN_IF_ERROR(FillShard(unit, index, name, optimizer, ops, shard, gather->stream()));
      gather->Gather(u, shard);
      for (size_t i = 0; receives && i < steps.size(); ++i) {
        if (steps[i] == 0) continue;
        ASSIGN_OR_RETURN(ShardedTensor tensor, gather->Extract(i, form));
        state.Set(StateKey::OptimState(unit.parameters[i]->fqn, name), std::move(tensor));
      }
    }
    for (size_t i = 0; receives && i < steps.size(); ++i) {
      if (steps[i] == 0) continue;
      state.Set(StateKey::OptimState(unit.parameters[i]->fqn, kStep), StepScalar(steps[i], form, group));
    }
  }
  if (receives) state.Set(StateKey::ParamGroups(), ParamGroupsJson(optimizer));
  return gather->Synchronize();
}

absl::Status LoadOptimState(const UnitStore& units, ProcessGroup& group, const StateDict& state, StateDictType type,
                            Optimizer& optimizer) {
  RETURN_IF_ERROR(AgreeOn(group, CheckState(units, group, state, type, optimizer)));
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepCounts(units, group, state));
  ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units, group));
  const std::map<std::string, size_t> index = IndexByName(optimizer);
  size_t at = 0;
  for (int u = 0; u < units.size(); ++u) {
    const Unit& unit = units.unit(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i, ++at) {
      const std::string& fqn = unit.parameters[i]->fqn;
      const auto found = index.find(fqn);
      if (found == index.end()) continue;
      optimizer.set_step_count(found->second, steps[at]);
      for (const std::string& name : optimizer.StateNames()) {
        const ShardedTensor* source = state.FindTensor(StateKey::OptimState(fqn, name));
        if (source == nullptr) continue;
        ASSIGN_OR_RETURN(const Tensor slice, optimizer.State(found->second, name, /*create=*/true));
        RETURN_IF_ERROR(gather->Scatter(u, i, *source, type, slice));
      }
    }
  }
  return gather->Synchronize();
}

absl::StatusOr<LiveOptimState> LiveOptimState::AddTo(StateDict& state, Optimizer& optimizer) {
  LiveOptimState live;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ShardedParameter& parameter = *optimizer.parameters()[i];
    for (const std::string& name : optimizer.StateNames()) {
      ASSIGN_OR_RETURN(const Tensor slice, optimizer.State(i, name, /*create=*/true));
      state.Set(StateKey::OptimState(parameter.fqn, name), LiveSlice(parameter.shape, parameter.interval, slice));
    }
    live.steps_.push_back(HostScalar(0));
    state.Set(StateKey::OptimState(parameter.fqn, kStep), LiveSlice(Shape(), {0, 1}, live.steps_.back().View({1})));
  }
  return live;
}

void LiveOptimState::Commit(Optimizer& optimizer) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    optimizer.set_step_count(i, static_cast<int64_t>(*steps_[i].data_as<float>()));
  }
}

std::string ParamGroupsJson(const Optimizer& optimizer) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const ParamGroupState& group : optimizer.ParamGroups()) {
    nlohmann::ordered_json entry = nlohmann::ordered_json::object();
    entry["params"] = group.params;
    for (const auto& [name, value] : group.values) {
      if (name == "beta1" || name == "beta2") {
        entry["betas"].push_back(value);
      } else {
        entry[name] = value;
      }
    }
    groups.push_back(std::move(entry));
  }
  return groups.dump();
}

}  // namespace fsdp
