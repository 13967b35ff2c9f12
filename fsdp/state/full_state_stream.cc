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

namespace fsdp {
namespace {

// One pass over a full state: described in the order of a FULL state dict, or streamed unit by unit.
class FullState {
 public:
  FullState(const UnitStore& units, std::vector<ReplicatedTensor> replicated, Optimizer* optimizer)
      : units_(units), replicated_(std::move(replicated)) {
    if (optimizer != nullptr) shards_.emplace(units, *optimizer);
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
    for (int u = 0; u < units_.size(); ++u) {
      for (const std::string& name : state_names()) AddNames(u, name, all);
      AddNames(u, kOptimStep, all);
    }
    if (shards_) {
      for (const size_t i : shards_->unmanaged()) AddUnmanagedNames(i, all);
      all.Set(StateKey::ParamGroups(), ParamGroupsJson(shards_->optimizer()));
    }
    return all;
  }

  absl::Status Stream(StateGather& gather, const std::function<absl::Status(const StateDict& part)>& visit) {
    gather_ = &gather;
    visit_ = &visit;
    // First, so that all ranks skip the same units below: has_state must be equal on every rank.
    if (shards_) FSDP_RETURN_IF_ERROR(shards_->Agree(gather.ranks()));
    for (int u = 0; u < units_.size(); ++u) {
      FSDP_RETURN_IF_ERROR(gather.Gather(u, units_.unit(u).shard));
      FSDP_RETURN_IF_ERROR(VisitGathered(
          u, [](const std::string& fqn) { return StateKey::Model(fqn); }, false));
      if (!shards_ || !shards_->has_state(u)) continue;
      for (const std::string& name : state_names()) {
        FSDP_RETURN_IF_ERROR(shards_->Gather(u, name, gather));
        FSDP_RETURN_IF_ERROR(VisitGathered(
            u, [&](const std::string& fqn) { return StateKey::OptimState(fqn, name); }, true));
      }
      VisitSteps(u);
    }
    FSDP_RETURN_IF_ERROR(VisitReplicated());
    // A failed visitor is reported only here, when no rank waits for a gather any more.
    return gather.ranks().AllReduceStatus(visited_);
  }

 private:
  std::vector<std::string> state_names() const {
    return shards_ ? shards_->optimizer().state_names() : std::vector<std::string>();
  }

  int64_t Steps(int unit, size_t index) const { return shards_ ? shards_->steps(unit, index) : 0; }

  static void Name(const StateKey& key, DType dtype, const Shape& shape, StateDict& all) {
    ShardedTensor named;
    named.dtype = dtype;
    named.shape = shape;
    all.Set(key, std::move(named));
  }

  void AddNames(int u, const std::string& state, StateDict& all) const {
    const Unit& unit = units_.unit(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      if (Steps(u, i) == 0) continue;
      Name(StateKey::OptimState(unit.parameters[i]->fqn, state), DType::kFloat32,
           state == kOptimStep ? Shape() : unit.parameters[i]->whole_shape(), all);
    }
  }

  void AddUnmanagedNames(size_t index, StateDict& all) const {
    const ShardedParameter& parameter = *shards_->optimizer().parameters()[index];
    if (shards_->optimizer().step_count(index) == 0) return;
    for (const std::string& name : state_names()) {
      Name(StateKey::OptimState(parameter.fqn, name), DType::kFloat32, parameter.shape, all);
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

  // Visits the parameters of the unit that was gathered last; with `stepped_only` only parameters that have optimizer
  // state.
  template <typename KeyOf>
  absl::Status VisitGathered(int u, const KeyOf& key_of, bool stepped_only) {
    const Unit& unit = units_.unit(u);
    StateDict part;
    for (size_t i = 0; Sees() && i < unit.parameters.size(); ++i) {
      if (stepped_only && Steps(u, i) == 0) continue;
      const Shape& shape = unit.parameters[i]->whole_shape();
      FSDP_ASSIGN_OR_RETURN(const Tensor view, gather_->HostView(i));
      part.Set(key_of(unit.parameters[i]->fqn), LiveSlice(shape, {0, shape.numel()}, view, /*replica=*/0));
    }
    return Visit(part);
  }

  void VisitSteps(int u) {
    const Unit& unit = units_.unit(u);
    StateDict part;
    for (size_t i = 0; Sees() && i < unit.parameters.size(); ++i) {
      if (Steps(u, i) == 0) continue;
      part.Set(StateKey::OptimState(unit.parameters[i]->fqn, kOptimStep), StepScalar(Steps(u, i), /*replica=*/0));
    }
    if (Sees() && !part.empty()) visited_ = (*visit_)(part);
  }

  // Tensor by tensor, each copied to the host in the dtype that it is saved in.
  absl::Status VisitReplicated() {
    for (const ReplicatedTensor& tensor : replicated_) {
      FSDP_RETURN_IF_ERROR(VisitCopy(StateKey::Model(tensor.fqn), tensor.data, tensor.data.shape(), tensor.dtype));
    }
    if (!shards_) return absl::OkStatus();
    Optimizer& optimizer = shards_->optimizer();
    for (const size_t i : shards_->unmanaged()) {
      const ShardedParameter& parameter = *optimizer.parameters()[i];
      if (optimizer.step_count(i) == 0) continue;
      for (const std::string& name : state_names()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor slice, shards_->Slice(i, name));
        FSDP_RETURN_IF_ERROR(
            VisitCopy(StateKey::OptimState(parameter.fqn, name), slice, parameter.shape, slice.dtype()));
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
  std::optional<OptimShards> shards_;
  StateGather* gather_ = nullptr;
  const std::function<absl::Status(const StateDict& part)>* visit_ = nullptr;
  absl::Status visited_;
};

}  // namespace

absl::StatusOr<StateDict> DescribeFullState(Module& root, const UnitStore& units, Optimizer* optimizer) {
  FSDP_ASSIGN_OR_RETURN(std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  return FullState(units, std::move(replicated), optimizer).Describe();
}

absl::Status StreamFullState(Module& root, const UnitStore& units, Optimizer* optimizer,
                             const std::function<absl::Status(const StateDict& part)>& visit) {
  FSDP_ASSIGN_OR_RETURN(std::vector<ReplicatedTensor> replicated, ReplicatedTensors(root, units));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  return FullState(units, std::move(replicated), optimizer).Stream(*gather, visit);
}

}  // namespace fsdp
