// SPDX-License-Identifier: Apache-2.0
//
// Open, unit by unit: all-gather the shard, copy each parameter out of the gather buffer into separate memory, and bind
// it. Close: copy this rank's slice of each parameter back into the shard, and restore the previous bindings. No
// communication is needed to close, since each rank's shard needs only elements that the rank itself has whole; edits
// of other ranks' elements are dropped.
//
// A unit that is not sharded has its parameters whole in the shard. It binds these and copies nothing, so edits stay
// also without writeback, as in PyTorch.
#include "fsdp/fsdp/summon_full_params.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/gather_gradient.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// True when the full parameters of `unit` are its shard's own storage.
bool LendsStorage(const Unit& unit) { return !unit.sharded(); }

// Combinations that PyTorch refuses too.
absl::Status CheckFlags(const SummonFullParamsOptions& options) {
  if (options.writeback && options.rank0_only) {
    return absl::UnimplementedError(
        "summon full params: writeback with rank0_only is not supported, since ranks would write different shapes; set "
        "writeback to false");
  }
  if (options.with_grads && options.offload_to_cpu) {
    return absl::UnimplementedError("summon full params: with_grads with offload_to_cpu is not supported");
  }
  return absl::OkStatus();
}

// A unit that lends its storage has nothing to copy to host memory. A flat parameter without use_orig_params has, in
// PyTorch, one gradient for all its parameters, so none to bind.
absl::Status CheckUnit(const Unit& unit, const SummonFullParamsOptions& options) {
  if (unit.summoned) {
    return absl::FailedPreconditionError(
        absl::StrCat("summon full params: unit ", unit.display_name(), " is summoned already"));
  }
  if (options.offload_to_cpu && LendsStorage(unit)) {
    return absl::UnimplementedError(absl::StrCat("summon full params: offload_to_cpu is not supported for unit ",
                                                 unit.display_name(),
                                                 ", which is not sharded (no_shard, or one rank)"));
  }
  if (options.with_grads && unit.settings.layout == LayoutKind::kFlat) {
    return absl::UnimplementedError(absl::StrCat("summon full params: with_grads wants use_orig_params, which unit ",
                                                 unit.display_name(), " was made without"));
  }
  return absl::OkStatus();
}

// The units to summon for `module`.
std::vector<int> Summoned(Module& module, const UnitStore& units, bool recurse) {
  std::set<const Module*> wanted{&module};
  if (recurse) {
    for (const auto& [name, below] : module.NamedModules()) wanted.insert(below);
  }
  std::vector<int> summoned;
  for (int u = 0; u < units.size(); ++u) {
    if (wanted.count(units.unit(u).module) != 0) summoned.push_back(u);
  }
  return summoned;
}

// For every parameter of every unit, whether some rank has a gradient for it. Collective.
absl::StatusOr<std::vector<std::vector<bool>>> AnyHasGrad(const UnitStore& units, const AllRanks& ranks) {
  std::string mine;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->sharded_parameters) mine += parameter->has_grad ? '1' : '0';
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.AllGatherObject(mine));
  std::vector<std::vector<bool>> any;
  size_t at = 0;
  for (const auto& unit : units.units()) {
    any.emplace_back(unit->parameters.size(), false);
    for (size_t i = 0; i < any.back().size(); ++i, ++at) {
      for (const std::string& theirs : all) any.back()[i] = any.back()[i] || (at < theirs.size() && theirs[at] == '1');
    }
  }
  return any;
}

// OK if `bound` still has the shape and dtype of `full`, which Open bound.
absl::Status CheckShape(const Parameter& parameter, const Tensor& bound, const Tensor& full) {
  if (bound.defined() && bound.shape() == full.shape() && bound.dtype() == full.dtype()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot write back parameter \"", parameter.fqn, "\": its shape or dtype changed from ",
                   full.shape().ToString(), " ", std::string(DTypeName(full.dtype())), " to ",
                   bound.defined() ? absl::StrCat(bound.shape().ToString(), " ", std::string(DTypeName(bound.dtype())))
                                   : std::string("nothing")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> SummonFullParamsGuard::Create(
    Module& module, const UnitStore& units, const SummonFullParamsOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckFlags(options));
  std::unique_ptr<SummonFullParamsGuard> guard(new SummonFullParamsGuard(units, options));
  guard->summoned_ = Summoned(module, units, options.recurse);
  // Checked before the first collective. The arguments are the same on all ranks, and so is the answer.
  for (const int u : guard->summoned_) FSDP_RETURN_IF_ERROR(CheckUnit(units.unit(u), options));
  FSDP_ASSIGN_OR_RETURN(guard->gather_, StateGather::Create(units));
  FSDP_RETURN_IF_ERROR(guard->Open());
  return guard;
}

SummonFullParamsGuard::SummonFullParamsGuard(const UnitStore& units, const SummonFullParamsOptions& options)
    : units_(units), options_(options) {}

SummonFullParamsGuard::~SummonFullParamsGuard() { (void)Close(); }

absl::Status SummonFullParamsGuard::Open() {
  std::vector<std::vector<bool>> has_grad;
  if (options_.with_grads) {
    FSDP_ASSIGN_OR_RETURN(has_grad, AnyHasGrad(units_, gather_->ranks()));
  }
  open_ = true;
  for (const int u : summoned_) {
    bindings_.emplace_back(units_.unit(u).parameters.size());
    units_.unit(u).summoned = true;
    FSDP_RETURN_IF_ERROR(OpenUnit(u, options_.with_grads ? has_grad[u] : std::vector<bool>()));
  }
  return gather_->Synchronize();
}

absl::StatusOr<Tensor> SummonFullParamsGuard::NewTensor(const Unit& unit, size_t index) {
  const Shape& shape = unit.parameters[index]->shape;
  const int64_t nbytes = shape.numel() * SizeOf(unit.dtype);
  Device& device = gather_->device();
  FSDP_ASSIGN_OR_RETURN(Buffer buffer,
                        options_.offload_to_cpu ? device.AllocatePinned(nbytes) : device.Allocate(nbytes));
  return Tensor(std::move(buffer), unit.dtype, shape);
}

absl::Status SummonFullParamsGuard::OpenUnit(int u, const std::vector<bool>& has_grad) {
  const Unit& unit = units_.unit(u);
  std::vector<Binding>& bindings = bindings_.back();
  const bool here = !options_.rank0_only || gather_->ranks().rank() == 0;
  FSDP_RETURN_IF_ERROR(gather_->Gather(u, unit.shard));
  for (size_t i = 0; i < bindings.size(); ++i) {
    Parameter& parameter = *unit.parameters[i];
    bindings[i].data_before = std::exchange(parameter.data, Tensor());
    bindings[i].grad_before = std::exchange(parameter.grad, Tensor());
    if (!here) continue;
    if (LendsStorage(unit)) {
      bindings[i].full = unit.sharded_parameters[i]->data.View(parameter.shape);
    } else {
      FSDP_ASSIGN_OR_RETURN(bindings[i].full, NewTensor(unit, i));
      gather_->CopyOutOwn(i, bindings[i].full, options_.offload_to_cpu);
    }
    parameter.data = bindings[i].full;
  }
  return options_.with_grads ? GatherGradients(u, has_grad) : absl::OkStatus();
}

// A rank may have no gradient for a parameter although other ranks have one: its elements are zeroed, not left
// unchanged.
absl::Status SummonFullParamsGuard::GatherGradients(int u, const std::vector<bool>& has_grad) {
  const Unit& unit = units_.unit(u);
  if (!unit.grad_shard.defined()) return absl::OkStatus();
  const bool here = !options_.rank0_only || gather_->ranks().rank() == 0;
  if (LendsStorage(unit)) {
    for (const auto& parameter : unit.sharded_parameters) {
      const bool has_memory = parameter->grad.defined();
      if (!parameter->has_grad && has_memory) gather_->device().ops().Zero(parameter->grad, gather_->stream());
    }
  }
  FSDP_RETURN_IF_ERROR(fsdp::GatherGradients(units_, u, unit.dtype, *gather_));
  for (size_t i = 0; here && i < has_grad.size(); ++i) {
    if (!has_grad[i]) continue;
    Binding& binding = bindings_.back()[i];
    if (LendsStorage(unit)) {
      binding.full_grad = unit.sharded_parameters[i]->grad.View(unit.parameters[i]->shape);
    } else {
      FSDP_ASSIGN_OR_RETURN(binding.full_grad, NewTensor(unit, i));
      gather_->CopyOutOwn(i, binding.full_grad, options_.offload_to_cpu);
    }
    unit.parameters[i]->grad = binding.full_grad;
  }
  return absl::OkStatus();
}

absl::Status SummonFullParamsGuard::Close() {
  if (!std::exchange(open_, false)) return absl::OkStatus();
  // An error does not stop the loop: every unit must get its bindings back.
  absl::Status first;
  for (size_t s = 0; s < bindings_.size(); ++s) {
    const int u = summoned_[s];
    if (options_.writeback || LendsStorage(units_.unit(u))) first.Update(WriteBack(static_cast<int>(s)));
    Rebind(static_cast<int>(s));
    units_.unit(u).summoned = false;
  }
  first.Update(gather_->Synchronize());
  return first;
}

absl::Status SummonFullParamsGuard::CopyIfElsewhere(const Tensor& from, const Tensor& to) {
  return from.data() == to.data() ? absl::OkStatus() : gather_->Copy(from, to);
}

// Copies this rank's slices of the tensors that are bound now into the shard. The program may have bound another
// tensor.
absl::Status SummonFullParamsGuard::WriteBack(int s) {
  const Unit& unit = units_.unit(summoned_[s]);
  unit.MarkShardChanged();
  for (size_t i = 0; i < bindings_[s].size(); ++i) {
    const Parameter& parameter = *unit.parameters[i];
    const ShardedParameter& sharded = *unit.sharded_parameters[i];
    const Binding& binding = bindings_[s][i];
    if (!binding.full.defined()) continue;
    FSDP_RETURN_IF_ERROR(CheckShape(parameter, parameter.data, binding.full));
    if (binding.full_grad.defined()) FSDP_RETURN_IF_ERROR(CheckShape(parameter, parameter.grad, binding.full_grad));
    const bool with_grad = binding.full_grad.defined() && sharded.has_grad;
    const std::vector<ShardLayout::Slice> runs = unit.layout.ShardRuns(i, unit.groups.shard_rank());
    for (const ShardLayout::Slice& run : runs) {
      const int64_t begin = run.offset_in_shard - runs[0].offset_in_shard;
      const Interval in_slice{begin, begin + run.interval.size()};
      FSDP_RETURN_IF_ERROR(CopyIfElsewhere(parameter.data.Slice(run.interval), sharded.data.Slice(in_slice)));
      if (!with_grad) continue;
      FSDP_RETURN_IF_ERROR(CopyIfElsewhere(parameter.grad.Slice(run.interval), sharded.grad.Slice(in_slice)));
    }
  }
  return absl::OkStatus();
}

void SummonFullParamsGuard::Rebind(int s) {
  const Unit& unit = units_.unit(summoned_[s]);
  for (size_t i = 0; i < bindings_[s].size(); ++i) {
    unit.parameters[i]->data = bindings_[s][i].data_before;
    unit.parameters[i]->grad = bindings_[s][i].grad_before;
  }
}

}  // namespace fsdp
