// SPDX-License-Identifier: Apache-2.0
//
// FULL and SHARDED gather one state of one unit at a time, as if it were the unit's parameters (OptimShards). LOCAL,
// and in any form the state of parameters outside all units, takes the optimizer's slices as they are. The optimizer
// keeps "step" as a count, so its tensor is made here, as PyTorch's float32 scalar; under SHARDED only the first rank
// of a chunk group holds it, so that each element of the state exists once. A factor (FactorShape) is on every rank,
// and is not gathered.
#include "fsdp/fsdp/state/optim_state.h"

#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_entries.h"
#include "fsdp/fsdp/state/optim_param_groups.h"
#include "fsdp/fsdp/state/optim_shards.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Collects an optimizer's state into a state dict.
class OptimStateWriter {
 public:
  OptimStateWriter(const UnitStore& units, const OptimShards& shards, const StateForm& form, StateGather& gather,
                   StateDict& state)
      : units_(units), shards_(shards), form_(form), gather_(gather), state_(state) {}

  // FULL, SHARDED. Collective.
  absl::Status AddGathered(int u) {
    if (!shards_.has_state(u)) return absl::OkStatus();
    const Unit& unit = units_.unit(u);
    for (const std::string& name : shards_.optimizer().state_names()) {
      FSDP_RETURN_IF_ERROR(AddFactors(u, name));
      if (!shards_.has_state(u, name)) continue;
      FSDP_RETURN_IF_ERROR(shards_.Gather(u, name, gather_));
      for (size_t i = 0; Receives() && i < unit.parameters.size(); ++i) {
        if (!shards_.Has(u, i, name)) continue;
        FSDP_ASSIGN_OR_RETURN(ShardedTensor tensor, gather_.Extract(i, form_));
        state_.Set(StateKey::OptimState(unit.parameters[i]->fqn, name), std::move(tensor));
      }
    }
    const bool is_sharded = form_.type == StateDictType::kSharded;
    for (size_t i = 0; Receives() && i < unit.parameters.size(); ++i) {
      if (shards_.steps(u, i) == 0) continue;
      const ChunkPlace place = ChunkPlaceOf(unit, i);
      ShardedTensor step = StepScalar(shards_.steps(u, i), is_sharded ? place.replica : gather_.ranks().rank());
      if (is_sharded && place.index != 0) step.shards.clear();
      state_.Set(StateKey::OptimState(unit.parameters[i]->fqn, kOptimStep), std::move(step));
    }
    return absl::OkStatus();
  }

  // For LOCAL, and for parameters outside all units in any form: the optimizer's own slices of parameters()[index].
  absl::Status AddSlices(size_t index, int replica) {
    Optimizer& optimizer = shards_.optimizer();
    const ShardedParameter& parameter = *optimizer.parameters()[index];
    if (optimizer.step_count(index) == 0 || !Receives()) return absl::OkStatus();
    for (const std::string& name : optimizer.StateNamesOf(index)) {
      FSDP_ASSIGN_OR_RETURN(Tensor slice, shards_.Slice(index, name));
      if (form_.offload_to_cpu && slice.numel() > 0) {
        FSDP_ASSIGN_OR_RETURN(slice, gather_.CopyOf(slice, /*to_host=*/true));
      }
      const std::optional<Shape> factor = FactorShape(name, parameter.whole_shape());
      state_.Set(StateKey::OptimState(parameter.fqn, name),
                 factor ? WholeOnEveryRank(*factor, slice) : LiveSlicesOf(parameter, slice, replica));
    }
    state_.Set(StateKey::OptimState(parameter.fqn, kOptimStep),
               StepScalar(optimizer.step_count(index), gather_.ranks().rank()));
    return absl::OkStatus();
  }

  // The states named `name` of a unit's parameters that are whole on every rank.
  absl::Status AddFactors(int u, const std::string& name) {
    const Unit& unit = units_.unit(u);
    for (size_t i = 0; Receives() && i < unit.parameters.size(); ++i) {
      const std::optional<Shape> shape = shards_.WholeShape(u, i, name);
      if (!shape) continue;
      FSDP_ASSIGN_OR_RETURN(const Tensor live, shards_.Whole(u, i, name));
      FSDP_ASSIGN_OR_RETURN(const Tensor copy, gather_.CopyOf(live, form_.offload_to_cpu));
      state_.Set(StateKey::OptimState(unit.parameters[i]->fqn, name), WholeOnEveryRank(*shape, copy));
    }
    return absl::OkStatus();
  }

  ShardedTensor WholeOnEveryRank(const Shape& shape, const Tensor& data) const {
    return LiveSlice(shape, {0, shape.numel()}, data, /*replica=*/gather_.ranks().rank());
  }

  bool Receives() const { return form_.ReceivedBy(gather_.ranks().rank()); }

 private:
  const UnitStore& units_;
  const OptimShards& shards_;
  const StateForm form_;
  StateGather& gather_;
  StateDict& state_;
};

// By parameter of `optimizer`: which replica of its shard this rank has. Every rank has a whole copy of a parameter
// outside all units, so there the replica is the rank.
std::vector<int> ReplicasOf(const UnitStore& units, const Optimizer& optimizer, int rank) {
  std::map<std::string, int> by_name;
  for (const auto& unit : units.units()) {
    for (size_t i = 0; i < unit->parameters.size(); ++i) by_name[unit->parameters[i]->fqn] = ShardReplica(*unit, i);
  }
  std::vector<int> replicas;
  for (const ShardedParameter* parameter : optimizer.parameters()) {
    const auto found = by_name.find(parameter->fqn);
    replicas.push_back(found == by_name.end() ? rank : found->second);
  }
  return replicas;
}

}  // namespace

absl::Status AddOptimState(const UnitStore& units, Optimizer& optimizer, const StateForm& form, StateDict& state) {
  FSDP_RETURN_IF_ERROR(CheckLocalIsOfNoMesh(units, form.type));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  const OptimShards shards(units, optimizer);
  const std::vector<int> replicas = ReplicasOf(units, optimizer, gather->ranks().rank());
  OptimStateWriter writer(units, shards, form, *gather, state);
  // Before the first entry, so that an optimizer that cannot be added changes nothing.
  absl::StatusOr<std::string> groups = WithParamGroups(state.FindText(StateKey::ParamGroups()), optimizer);
  if (form.type == StateDictType::kLocal) {
    FSDP_RETURN_IF_ERROR(groups.status());
    for (size_t i = 0; i < replicas.size(); ++i) FSDP_RETURN_IF_ERROR(writer.AddSlices(i, replicas[i]));
  } else {
    FSDP_RETURN_IF_ERROR(shards.Agree(gather->ranks(), groups.status()));
    for (int u = 0; u < units.size(); ++u) FSDP_RETURN_IF_ERROR(writer.AddGathered(u));
    for (const size_t i : shards.unmanaged()) FSDP_RETURN_IF_ERROR(writer.AddSlices(i, replicas[i]));
  }
  if (writer.Receives()) state.Set(StateKey::ParamGroups(), *std::move(groups));
  return gather->Synchronize();
}

ShardedTensor StepScalar(int64_t steps, int replica) {
  ShardedTensor scalar;
  scalar.dtype = DType::kFloat32;
  scalar.replica = replica;
  scalar.shards.push_back({{0, 1}, HostScalar(static_cast<float>(steps))});
  return scalar;
}

// The step of a parameter that the checkpoint has no state of, because it never had a gradient.
constexpr float kNotFilled = -1;

absl::StatusOr<LiveOptimState> LiveOptimState::AddTo(StateDict& state, Optimizer& optimizer) {
  LiveOptimState live;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ShardedParameter& parameter = *optimizer.parameters()[i];
    const StateKey step = StateKey::OptimState(parameter.fqn, kOptimStep);
    if (state.contains(step)) {
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.fqn, "\" is in two optimizers, and a ",
                                                     "state dict has one state of it: restore one of them"));
    }
    for (const std::string& name : optimizer.StateNamesOf(i)) {
      FSDP_ASSIGN_OR_RETURN(const Tensor slice, optimizer.State(i, name, /*create=*/true));
      const std::optional<Shape> factor = FactorShape(name, parameter.whole_shape());
      state.Set(StateKey::OptimState(parameter.fqn, name),
                factor ? LiveSlice(*factor, {0, factor->numel()}, slice, /*replica=*/0)
                       : LiveSlicesOf(parameter, slice, /*replica=*/0));
    }
    live.steps_.push_back(HostScalar(kNotFilled));
    state.Set(step, LiveSlice(Shape(), {0, 1}, live.steps_.back(), /*replica=*/0));
  }
  return live;
}

bool LiveOptimState::TakeOutSteps(const Optimizer& optimizer, StateDict& state) {
  if (optimizer.needs_step()) return false;
  std::set<std::string> mine;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    mine.insert(optimizer.parameters()[i]->fqn);
    *steps_[i].data_as<float>() = optimizer.StateNamesOf(i).empty() ? kNotFilled : 1;
  }
  StateDict rest;
  rest.type = state.type;
  rest.aliases = state.aliases;
  rest.units = state.units;
  rest.attributes = state.attributes;
  for (const auto& [key, value] : state.entries()) {
    const bool is_step = key.section == StateKey::Section::kOptimState && key.state == kOptimStep;
    if (!is_step || mine.count(key.fqn) == 0) rest.Set(key, value);
  }
  state = std::move(rest);
  return true;
}

absl::Status LiveOptimState::Commit(Optimizer& optimizer, Stream& stream) const {
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const float steps = *steps_[i].data_as<float>();
    optimizer.set_step_count(i, steps == kNotFilled ? 0 : static_cast<int64_t>(steps));
    if (steps != kNotFilled) continue;
    const Device& device = *optimizer.parameters()[i]->device;
    for (const std::string& name : optimizer.StateNamesOf(i)) {
      FSDP_ASSIGN_OR_RETURN(const Tensor slice, optimizer.State(i, name));
      // Nothing uses the memory: Restore has waited for all streams.
      if (device.type() == DeviceType::kCpu) {
        std::memset(slice.data(), 0, slice.nbytes());
      } else {
        device.ops().Zero(slice, stream);
      }
    }
  }
  return stream.Synchronize();
}

}  // namespace fsdp
