// SPDX-License-Identifier: Apache-2.0
//
// One class for both passes, so that Describe names exactly the tensors that Stream visits; Describe orders them as a
// FULL state dict does, Stream unit by unit, so that a unit's parameters and states share one gather buffer.
//
// Rank 0's visitor may fail, for example on a full disk. The other ranks are in the next all-gather by then, so rank 0
// continues to gather without visiting, and all agree on the error at the end.
#include "fsdp/fsdp/state/full_state_stream.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_param_groups.h"
#include "fsdp/fsdp/state/optim_shards.h"
#include "fsdp/fsdp/state/optim_state.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/optim/parameter_state.h"

namespace fsdp {
namespace {

// One pass over a full state: described in the order of a FULL state dict, or streamed unit by unit.
class FullState {
 public:
  FullState(const UnitStore& units, std::vector<ReplicatedTensor> replicated, absl::Span<Optimizer* const> optimizers)
      : units_(units), replicated_(std::move(replicated)) {
    for (Optimizer* optimizer : optimizers) shards_.emplace_back(units, *optimizer);
  }

  absl::StatusOr<StateDict> Describe() {
    StateDict all = EmptyStateDict(units_);
    for (int u = 0; u < units_.size(); ++u) {
      for (const auto& parameter : units_.unit(u).parameters) {
        Name(StateKey::Model(parameter->fqn), units_.unit(u).dtype, parameter->whole_shape(), all);
      }
    }
    for (const ReplicatedTensor& tensor : replicated_) {
      Name(StateKey::Model(tensor.fqn), tensor.dtype, tensor.data.shape(), all);
    }
    for (const OptimShards& shards : shards_) AddStates(shards, all);
    if (shards_.empty()) return all;
    FSDP_ASSIGN_OR_RETURN(std::string groups, ParamGroups());
    all.Set(StateKey::ParamGroups(), std::move(groups));
    return all;
  }

  absl::Status Stream(StateGather& gather, const std::function<absl::Status(const StateDict& part)>& visit) {
    gather_ = &gather;
    visit_ = &visit;
    // First, so that all ranks skip the same units below: has_state must be equal on every rank.
    const absl::Status distinct = ParamGroups().status();
    for (const OptimShards& shards : shards_) FSDP_RETURN_IF_ERROR(shards.Agree(gather.ranks(), distinct));
    for (int u = 0; u < units_.size(); ++u) {
      FSDP_RETURN_IF_ERROR(gather.Gather(u, units_.unit(u).shard));
      FSDP_RETURN_IF_ERROR(VisitGathered(
          u, [](const std::string& fqn) { return StateKey::Model(fqn); }, [](size_t) { return true; }));
      for (const OptimShards& shards : shards_) FSDP_RETURN_IF_ERROR(VisitStates(shards, u));
    }
    FSDP_RETURN_IF_ERROR(VisitReplicated());
    // A failed visitor is reported only here, when no rank waits for a gather any more.
    return gather.ranks().AllReduceStatus(visited_);
  }

 private:
  // Of all optimizers. kInvalidArgument names a parameter that two of them have.
  absl::StatusOr<std::string> ParamGroups() const {
    std::string groups = "[]";
    for (const OptimShards& shards : shards_) {
      FSDP_ASSIGN_OR_RETURN(groups, WithParamGroups(&groups, shards.optimizer()));
    }
    return groups;
  }

  void AddStates(const OptimShards& shards, StateDict& all) const {
    for (int u = 0; u < units_.size(); ++u) {
      for (const std::string& name : shards.optimizer().state_names()) AddNames(shards, u, name, all);
      AddNames(shards, u, kOptimStep, all);
    }
    for (const size_t i : shards.unmanaged()) AddUnmanagedNames(shards.optimizer(), i, all);
  }

  static void Name(const StateKey& key, DType dtype, const Shape& shape, StateDict& all) {
    ShardedTensor named;
    named.dtype = dtype;
    named.shape = shape;
    all.Set(key, std::move(named));
  }

  void AddNames(const OptimShards& shards, int u, const std::string& state, StateDict& all) const {
    const Unit& unit = units_.unit(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      std::optional<Shape> shape = shards.WholeShape(u, i, state);
      if (state == kOptimStep && shards.steps(u, i) > 0) shape = Shape();
      if (shards.Has(u, i, state)) shape = unit.parameters[i]->whole_shape();
      if (!shape) continue;
      const DType dtype = state == kOptimStep ? DType::kFloat32 : unit.dtype;
      Name(StateKey::OptimState(unit.parameters[i]->fqn, state), dtype, *shape, all);
    }
  }

  static void AddUnmanagedNames(const Optimizer& optimizer, size_t index, StateDict& all) {
    const ShardedParameter& parameter = *optimizer.parameters()[index];
    if (optimizer.step_count(index) == 0) return;
    for (const std::string& name : optimizer.StateNamesOf(index)) {
      Name(StateKey::OptimState(parameter.fqn, name), parameter.data.dtype(),
           FactorShape(name, parameter.shape).value_or(parameter.shape), all);
    }
    Name(StateKey::OptimState(parameter.fqn, kOptimStep), DType::kFloat32, Shape(), all);
  }

  // Only rank 0 visits; after its first error it gathers without visiting.
  bool Sees() const { return gather_->ranks().rank() == 0 && visited_.ok(); }

  // Waits for the elements of `part` and passes it to the visitor. Its memory may be reused afterwards.
  absl::Status Visit(const StateDict& part) {
    FSDP_RETURN_IF_ERROR(gather_->Synchronize());
    if (Sees() && !part.empty()) visited_ = (*visit_)(part);
    return absl::OkStatus();
  }

  absl::Status VisitStates(const OptimShards& shards, int u) {
    if (!shards.has_state(u)) return absl::OkStatus();
    for (const std::string& name : shards.optimizer().state_names()) {
      FSDP_RETURN_IF_ERROR(VisitFactors(shards, u, name));
      if (!shards.has_state(u, name)) continue;
      FSDP_RETURN_IF_ERROR(shards.Gather(u, name, *gather_));
      FSDP_RETURN_IF_ERROR(VisitGathered(
          u, [&](const std::string& fqn) { return StateKey::OptimState(fqn, name); },
          [&](size_t i) { return shards.Has(u, i, name); }));
    }
    VisitSteps(shards, u);
    return absl::OkStatus();
  }

  // The states named `name` of a unit's parameters that are whole on every rank.
  absl::Status VisitFactors(const OptimShards& shards, int u, const std::string& name) {
    const Unit& unit = units_.unit(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::optional<Shape> shape = shards.WholeShape(u, i, name);
      if (!shape) continue;
      FSDP_ASSIGN_OR_RETURN(const Tensor live, shards.Whole(u, i, name));
      const StateKey key = StateKey::OptimState(unit.parameters[i]->fqn, name);
      FSDP_RETURN_IF_ERROR(VisitCopy(key, live, *shape, live.dtype()));
    }
    return absl::OkStatus();
  }

  // Visits the parameters of the unit that was gathered last, by index, for which `has` is true.
  template <typename KeyOf, typename Has>
  absl::Status VisitGathered(int u, const KeyOf& key_of, const Has& has) {
    const Unit& unit = units_.unit(u);
    StateDict part;
    for (size_t i = 0; Sees() && i < unit.parameters.size(); ++i) {
      if (!has(i)) continue;
      const Shape& shape = unit.parameters[i]->whole_shape();
      FSDP_ASSIGN_OR_RETURN(const Tensor view, gather_->HostView(i));
      part.Set(key_of(unit.parameters[i]->fqn), LiveSlice(shape, {0, shape.numel()}, view, /*replica=*/0));
    }
    return Visit(part);
  }

  void VisitSteps(const OptimShards& shards, int u) {
    const Unit& unit = units_.unit(u);
    StateDict part;
    for (size_t i = 0; Sees() && i < unit.parameters.size(); ++i) {
      if (shards.steps(u, i) == 0) continue;
      part.Set(StateKey::OptimState(unit.parameters[i]->fqn, kOptimStep),
               StepScalar(shards.steps(u, i), /*replica=*/0));
    }
    if (Sees() && !part.empty()) visited_ = (*visit_)(part);
  }

  // Tensor by tensor, each copied to the host in the dtype that it is saved in.
  absl::Status VisitReplicated() {
    for (const ReplicatedTensor& tensor : replicated_) {
      FSDP_RETURN_IF_ERROR(VisitCopy(StateKey::Model(tensor.fqn), tensor.data, tensor.data.shape(), tensor.dtype));
    }
    for (const OptimShards& shards : shards_) FSDP_RETURN_IF_ERROR(VisitUnmanaged(shards));
    return absl::OkStatus();
  }

  absl::Status VisitUnmanaged(const OptimShards& shards) {
    const Optimizer& optimizer = shards.optimizer();
    for (const size_t i : shards.unmanaged()) {
      const ShardedParameter& parameter = *optimizer.parameters()[i];
      if (optimizer.step_count(i) == 0) continue;
      for (const std::string& name : optimizer.StateNamesOf(i)) {
        FSDP_ASSIGN_OR_RETURN(const Tensor slice, shards.Slice(i, name));
        FSDP_RETURN_IF_ERROR(VisitCopy(StateKey::OptimState(parameter.fqn, name), slice,
                                       FactorShape(name, parameter.shape).value_or(parameter.shape), slice.dtype()));
      }
      StateDict part;
      part.Set(StateKey::OptimState(parameter.fqn, kOptimStep), StepScalar(optimizer.step_count(i), /*replica=*/0));
      FSDP_RETURN_IF_ERROR(Visit(part));
    }
    return absl::OkStatus();
  }

  // Pinned memory for one tensor at a time: replicated tensors are few and small.
  absl::Status VisitCopy(const StateKey& key, const Tensor& data, const Shape& shape, DType dtype) {
    if (!Sees()) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, gather_->device().AllocatePinned(data.numel() * SizeOf(dtype)));
    const Tensor copy(std::move(buffer), dtype, {data.numel()});
    FSDP_RETURN_IF_ERROR(gather_->Copy(data, copy));
    StateDict part;
    part.Set(key, LiveSlice(shape, {0, data.numel()}, copy, /*replica=*/0));
    return Visit(part);
  }

  const UnitStore& units_;
  // Owned here, because Stream visits them after all units.
  const std::vector<ReplicatedTensor> replicated_;
  std::vector<OptimShards> shards_;  // by optimizer
  StateGather* gather_ = nullptr;
  const std::function<absl::Status(const StateDict& part)>* visit_ = nullptr;
  absl::Status visited_;
};

}  // namespace

absl::StatusOr<StateDict> DescribeFullState(Module& root, const UnitStore& units,
                                            absl::Span<Optimizer* const> optimizers) {
  FSDP_ASSIGN_OR_RETURN(std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  return FullState(units, std::move(replicated), optimizers).Describe();
}

absl::Status StreamFullState(Module& root, const UnitStore& units, absl::Span<Optimizer* const> optimizers,
                             const std::function<absl::Status(const StateDict& part)>& visit) {
  FSDP_ASSIGN_OR_RETURN(std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  return FullState(units, std::move(replicated), optimizers).Stream(*gather, visit);
}

}  // namespace fsdp
