// SPDX-License-Identifier: Apache-2.0
//
// LibTorch keeps an optimizer's state in a map from tensors to objects with tensors. Here the state is in StateBuffers,
// for state dicts to read and write. StateBuffers owns the memory and LibTorch's tensors are views of it:
//
//   before a step   a parameter with step_count > 0 gets an object with views and that count, which may come from a
//                   checkpoint. Without steps it gets no object, so that LibTorch begins its state in its own way
//   the step        LibTorch updates the views in place, and makes the states of parameters that are new to it
//   after it        tensors that are not views yet are copied, and views take their place
#include "fsdp/libtorch/torch_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/libtorch/stream_order.h"
#include "fsdp/libtorch/tensor_bridge.h"
#include "fsdp/libtorch/unit_follower.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {
namespace {

using State = TorchOptimizerKind::State;

// The names of the states that some group of `optimizer` has.
std::vector<std::string> StateNames(const TorchOptimizerKind& kind, const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const TorchOptimizerKind::Field& field : kind.fields) {
    const auto& groups = optimizer.param_groups();
    if (std::any_of(groups.begin(), groups.end(), [&](const auto& group) { return field.exists(group.options()); })) {
      names.push_back(field.name);
    }
  }
  return names;
}

// The slices of `optimizer`'s groups, by group.
absl::StatusOr<std::vector<std::vector<ShardedParameter*>>> GroupsOf(const LocalShards& local,
                                                                     const torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<ShardedParameter*>> groups;
  std::vector<bool> taken(local.tensors().size(), false);
  for (const auto& group : optimizer.param_groups()) {
    groups.emplace_back();
    for (const at::Tensor& tensor : group.params()) {
      const auto found = std::find_if(local.tensors().begin(), local.tensors().end(),
                                      [&](const at::Tensor& mine) { return mine.is_same(tensor); });
      const std::string place =
          absl::StrCat("TorchOptimizer: param group ", groups.size() - 1, ", tensor ", groups.back().size());
      if (found == local.tensors().end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, " is not one of the module's: make the optimizer over LocalParameters()"));
      }
      const size_t index = found - local.tensors().begin();
      ShardedParameter* parameter = local.parameter(index);
      if (taken[index]) {
        return absl::InvalidArgumentError(absl::StrCat(place, ", \"", parameter->fqn, "\", is in the groups twice"));
      }
      taken[index] = true;
      groups.back().push_back(parameter);
    }
  }
  return groups;
}

}  // namespace

TorchOptimizer::TorchOptimizer(std::shared_ptr<UnitFollower> follower,
                               const std::vector<std::vector<ShardedParameter*>>& groups,
                               std::vector<std::string> state_names, const TorchOptimizerKind& kind,
                               std::unique_ptr<torch::optim::Optimizer> optimizer)
    : Optimizer(groups, std::move(state_names)),
      follower_(std::move(follower)),
      kind_(kind),
      optimizer_(std::move(optimizer)) {
  for (const auto& group : optimizer_->param_groups()) {
    tensors_.insert(tensors_.end(), group.params().begin(), group.params().end());
  }
}

// LibTorch may still be computing with the states.
TorchOptimizer::~TorchOptimizer() {
  if (!tensors_.empty()) AwaitLibTorch(tensors_[0].device()).IgnoreError();
}

absl::StatusOr<std::unique_ptr<TorchOptimizer>> TorchOptimizer::Create(
    ShardedModule& module, std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer == nullptr) return absl::InvalidArgumentError("TorchOptimizer: the optimizer is null");
  FSDP_ASSIGN_OR_RETURN(const TorchOptimizerKind* kind, KindOf(*optimizer));
  FSDP_ASSIGN_OR_RETURN(const auto groups, GroupsOf(module.follower_->local_shards(), *optimizer));
  // A class with initial_value makes its states in the constructor, so states do not show that it has taken steps.
  if (kind->initial_value == nullptr && !optimizer->state().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TorchOptimizer: the ", kind->name, " has taken steps: expected one that has not"));
  }
  std::vector<std::string> names = StateNames(*kind, *optimizer);
  return std::unique_ptr<TorchOptimizer>(
      new TorchOptimizer(module.follower_, groups, std::move(names), *kind, std::move(optimizer)));
}

const TorchOptimizerKind::Options& TorchOptimizer::OptionsOf(size_t group) const {
  return optimizer_->param_groups()[group].options();
}

absl::Status TorchOptimizer::PrepareState(size_t index) {
  auto& states = optimizer_->state();
  void* const key = tensors_[index].unsafeGetTensorImpl();
  const TorchOptimizerKind::Options& options = OptionsOf(group_of(index));
  // LibTorch must begin this state itself: remove one from before a restore.
  if (step_count(index) == 0 && kind_.initial_value == nullptr) {
    states.erase(key);
    return absl::OkStatus();
  }
  if (states.find(key) == states.end()) states[key] = kind_.make_state();
  kind_.set_step(*states[key], step_count(index));
  for (const TorchOptimizerKind::Field& field : kind_.fields) {
    if (!field.exists(options)) continue;
    FSDP_ASSIGN_OR_RETURN(const Tensor ours, this->State(index, field.name, /*create=*/true));
    const at::Tensor view = TorchViewOf(ours, tensors_[index].device());
    // The memory is new, and LibTorch would only do this in the optimizer's constructor.
    if (step_count(index) == 0) view.fill_(kind_.initial_value(options));
    field.tensor(*states[key]) = view;
  }
  return absl::OkStatus();
}

absl::Status TorchOptimizer::AdoptState(size_t index) {
  FSDP_RETURN_IF_ERROR(state().Create(index));
  auto& states = optimizer_->state();
  const auto found = states.find(tensors_[index].unsafeGetTensorImpl());
  if (found == states.end()) return absl::OkStatus();  // SGD without momentum
  for (const TorchOptimizerKind::Field& field : kind_.fields) {
    if (!field.exists(OptionsOf(group_of(index)))) continue;
    FSDP_ASSIGN_OR_RETURN(const Tensor ours, this->State(index, field.name, /*create=*/true));
    at::Tensor& theirs = field.tensor(*found->second);
    // The step updated the view in place: nothing to copy.
    if (!theirs.defined() || theirs.data_ptr() == ours.data()) continue;
    const at::Tensor view = TorchViewOf(ours, tensors_[index].device());
    view.copy_(theirs);
    theirs = view;
  }
  return absl::OkStatus();
}

absl::Status TorchOptimizer::Step(Stream& stream) {
  // LibTorch does not know `stream`, on which gradients were reduced.
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  try {
    at::NoGradGuard no_grad;
    LocalShards& local = follower_->local_shards();
    // In this order: MarkUpdates reads what LibTorch did since the last step (zero_grad, writes), ParametersToUpdate
    // depends on it, and FollowGradients shows LibTorch the gradients that are left.
    local.MarkUpdates();
    FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
    local.FollowGradients();
    for (const size_t i : indices) FSDP_RETURN_IF_ERROR(PrepareState(i));
    if (has_grad_factor()) {
      StepScaled(indices);
    } else {
      optimizer_->step();
    }
    for (const size_t i : indices) FSDP_RETURN_IF_ERROR(AdoptState(i));
    FinishStep(indices);
    for (const size_t i : indices) parameters()[i]->compute_copy_current = false;  // LibTorch does not write it
    FSDP_RETURN_IF_ERROR(AfterLibTorch(stream, TorchDeviceOf(stream.device())));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(kind_.name, " of LibTorch: ", MessageOf(error)));
  }
  return absl::OkStatus();
}

// Steps with copies of the gradients, multiplied by the factor.
void TorchOptimizer::StepScaled(const std::vector<size_t>& indices) {
  std::vector<at::Tensor> gradients;
  for (const size_t i : indices) {
    at::Tensor& grad = tensors_[i].mutable_grad();
    const at::Tensor factor = TorchViewOf(ExtrasOf(i).grad_factor, tensors_[i].device());
    gradients.push_back(std::exchange(grad, grad.mul(factor).to(grad.scalar_type())));
  }
  optimizer_->step();
  // Clipping must not show in the gradients that the program reads.
  for (size_t k = 0; k < indices.size(); ++k) tensors_[indices[k]].mutable_grad() = gradients[k];
}

std::vector<ParamGroupState> TorchOptimizer::FormulaGroups() const {
  std::vector<ParamGroupState> groups;
  for (size_t g = 0; g < optimizer_->param_groups().size(); ++g) {
    groups.push_back({GroupNames(g), {}});
    for (const auto& h : kind_.hyperparameters) groups.back().values.emplace_back(h.name, h.get(OptionsOf(g)));
  }
  return groups;
}

absl::Status TorchOptimizer::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kind_.name, group));
  for (const auto& h : kind_.hyperparameters) {
    if (h.name != name) continue;
    if (h.set != nullptr) return h.check(absl::StrCat(kind_.name, ", param group ", group, ": ", h.name), value);
    const double mine = h.get(OptionsOf(group));
    if (mine == value) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(kind_.name, ", param group ", group, ": ", h.name, " is ", mine,
                                                   ", not ", value, ", and fixed: it decides which states there are"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kind_.name, ", param group ", group, ": no hyperparameter \"", std::string(name), "\""));
}

void TorchOptimizer::AssignFormula(size_t group, std::string_view name, double value) {
  for (const auto& h : kind_.hyperparameters) {
    if (h.name == name && h.set != nullptr) h.set(optimizer_->param_groups()[group].options(), value);
  }
}

}  // namespace fsdp
