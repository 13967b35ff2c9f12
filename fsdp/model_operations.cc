// SPDX-License-Identifier: Apache-2.0
//
// Each operation is: the model, then its StepGate, which refuses the call within a step and waits for streams, then the
// function of clip_grad_norm.h or state/ that does the work. ClipGradNormAsync is the exception, since it must not
// wait.
#include "fsdp/fsdp/model_operations.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/clip_grad_norm.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/state/full_state_stream.h"
#include "fsdp/fsdp/state/gather_gradient.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state.h"
#include "fsdp/fsdp/state/restore_state.h"

namespace fsdp {
namespace {

// `optimizer`, which may be null, as a list.
absl::Span<Optimizer* const> OneOrNone(Optimizer* const& optimizer) {
  return {&optimizer, optimizer == nullptr ? size_t{0} : size_t{1}};
}

// Errors for a model of modules use PyTorch's name of the call.
std::string_view ClipCall(const ShardedModel& model, std::string_view name) {
  return model.has_modules() ? "clip_grad_norm" : name;
}

// FSDP2's state dict: this rank's rows are its dim-0 chunks, so SHARDED needs no gathering.
absl::StatusOr<StateDict> RowsOf(const ShardedModel& model, const StateDictOptions& options) {
  if (!model.units().shards_are_dim0_chunks()) {  // rows of parts are not rows of the whole tensors
    return GetModelState(model.module(), model.units(),
                         {.type = StateDictType::kSharded, .ignore_frozen_params = options.ignore_frozen_params});
  }
  // Views of the shards: an update of them is the model's.
  FSDP_ASSIGN_OR_RETURN(StateDict state, LiveModelState(model.module(), model.units(), options));
  state.type = StateDictType::kSharded;
  return state;
}

}  // namespace

absl::StatusOr<ShardedModel*> ModelOperations::IdleModel(std::string_view call) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  FSDP_RETURN_IF_ERROR(model->gate().CheckIdle(call));
  return model;
}

absl::StatusOr<float> ModelOperations::ClipGradNorm(float max_norm, double norm_type) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  // Idle, because the norm is read on the host; ClipGradNormAsync only needs the pass to be over.
  FSDP_RETURN_IF_ERROR(model->gate().CheckIdle(ClipCall(*model, "ClipGradNorm")));
  return ClipShardedGradNorm(*model, max_norm, norm_type);
}

absl::StatusOr<GradClip> ModelOperations::ClipGradNormAsync(float max_norm) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  FSDP_RETURN_IF_ERROR(model->gate().CheckBetweenPasses(ClipCall(*model, "ClipGradNormAsync")));
  return DeferClipShardedGradNorm(*model, max_norm);
}

absl::StatusOr<Tensor> ModelOperations::GetFullGradient(std::string_view parameter) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("GetFullGradient"));
  return GatherGradient(model->units(), parameter);
}

// A LOCAL state dict lends the shards, which counts as a change of them.
absl::StatusOr<StateDict> ModelOperations::GetStateDict(const StateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("GetStateDict"));
  StateForm form;
  if (settings_.has_value()) form = FormOf(settings_->state_dict_config());
  form.ignore_frozen_params = options.ignore_frozen_params;
  absl::StatusOr<StateDict> state =
      settings_.has_value() ? GetModelState(model->module(), model->units(), form) : RowsOf(*model, options);
  model->gate().MarkShardsChanged(/*loaded=*/false);
  return state;
}

absl::Status ModelOperations::AddOptimStateDict(Optimizer& optimizer, StateDict& state) {
  // FSDP2 has no settings; its state stays on the device unless the caller asks otherwise.
  if (!settings_.has_value()) {
    return AddOptimStateDictAs(ShardedOptimStateDictConfig{.offload_to_cpu = false}, optimizer, state);
  }
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("AddOptimStateDict"));
  return AddOptimState(model->units(), optimizer, FormOf(settings_->optim_state_dict_config()), state);
}

absl::Status ModelOperations::AddOptimStateDictAs(const OptimStateDictConfig& config, Optimizer& optimizer,
                                                  StateDict& state) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("AddOptimStateDict"));
  const StateForm form = FormOf(config);
  if (!state.empty() && state.type != form.type) {
    return absl::InvalidArgumentError(
        absl::StrCat("AddOptimStateDict: the config is of ", std::string(StateDictTypeName(form.type)),
                     ", the state dict is ", std::string(StateDictTypeName(state.type)),
                     ": expected one type; give the optimizer's config of the state dict's type, or an empty one"));
  }
  // An empty state dict takes the type of its first part.
  state.type = form.type;
  return AddOptimState(model->units(), optimizer, form, state);
}

// The type of a state dict to load.
StateDictType ModelOperations::TypeOf(const StateDict& state, const LoadStateDictOptions& options) const {
  if (settings_.has_value()) return settings_->type();
  return options.broadcast_from_rank0 ? StateDictType::kFull : state.type;
}

absl::StatusOr<IncompatibleKeys> ModelOperations::LoadStateDict(const StateDict& state) {
  return LoadStateDict(state, LoadStateDictOptions{});
}

absl::StatusOr<IncompatibleKeys> ModelOperations::LoadStateDict(const StateDict& state,
                                                                const LoadStateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  FSDP_RETURN_IF_ERROR(model->gate().CheckCanLoad("LoadStateDict"));
  absl::StatusOr<IncompatibleKeys> keys =
      LoadModelState(model->module(), model->units(), state, TypeOf(state, options), options);
  // Also after an error, which may have left some shards loaded.
  model->gate().MarkShardsChanged(keys.ok());
  return keys;
}

absl::StatusOr<std::vector<std::string>> ModelOperations::LoadOptimStateDict(const StateDict& state,
                                                                             Optimizer& optimizer) {
  return LoadOptimStateDict(state, optimizer, LoadStateDictOptions{});
}

absl::StatusOr<std::vector<std::string>> ModelOperations::LoadOptimStateDict(const StateDict& state,
                                                                             Optimizer& optimizer,
                                                                             const LoadStateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("LoadOptimStateDict"));
  const StateSource from =
      settings_.has_value() ? SourceOf(*settings_, options) : SourceOf(TypeOf(state, options), options);
  return LoadOptimState(model->units(), state, from, options.strict, optimizer);
}

absl::StatusOr<std::vector<AttributeDifference>> ModelOperations::Restore(Optimizer* optimizer, const FillState& load) {
  return Restore(optimizer, load, RestoreOptions{});
}

absl::StatusOr<std::vector<AttributeDifference>> ModelOperations::Restore(Optimizer* optimizer, const FillState& load,
                                                                          const RestoreOptions& options) {
  return Restore(OneOrNone(optimizer), load, options);
}

absl::StatusOr<std::vector<AttributeDifference>> ModelOperations::Restore(absl::Span<Optimizer* const> optimizers,
                                                                          const FillState& load,
                                                                          const RestoreOptions& options) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  FSDP_RETURN_IF_ERROR(model->gate().CheckCanLoad("Restore"));
  absl::StatusOr<std::vector<AttributeDifference>> differences =
      RestoreState(model->module(), model->units(), optimizers, load, options, model->stream());
  model->gate().MarkShardsChanged(differences.ok());
  return differences;
}

absl::StatusOr<StateDict> ModelOperations::DescribeFullState(Optimizer* optimizer) {
  return DescribeFullState(OneOrNone(optimizer));
}

absl::StatusOr<StateDict> ModelOperations::DescribeFullState(absl::Span<Optimizer* const> optimizers) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, Model());
  return fsdp::DescribeFullState(model->module(), model->units(), optimizers);
}

absl::Status ModelOperations::StreamFullState(Optimizer* optimizer, const FullStatePart& visit) {
  return StreamFullState(OneOrNone(optimizer), visit);
}

absl::Status ModelOperations::StreamFullState(absl::Span<Optimizer* const> optimizers, const FullStatePart& visit) {
  FSDP_ASSIGN_OR_RETURN(ShardedModel * model, IdleModel("StreamFullState"));
  return fsdp::StreamFullState(model->module(), model->units(), optimizers, visit);
}

}  // namespace fsdp
