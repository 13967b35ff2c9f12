// SPDX-License-Identifier: Apache-2.0
//
// Before the root's first use a FsdpModule is alone: it keeps its controls, and its hooks refuse forward. Root() then
// makes the FsdpRoot, which joins all modules below; from there the executor has the hooks, and each setter writes
// twice: to the module's own controls, which getters and recursion read, and through FsdpRoot::Apply to those of its
// unit, which the executor reads at the start of the next pass. Prefetch lists are kept as modules here, since units
// have no index before there is a root.
#include "fsdp/fsdp/fsdp_module.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/clip_grad_norm.h"
#include "fsdp/fsdp/fsdp_root.h"
#include "fsdp/fsdp/state/gather_gradient.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state.h"
#include "fsdp/fsdp/state/restore_state.h"

namespace fsdp {
namespace {

absl::Status CheckPrefetch(std::string_view argument, const std::vector<FsdpModule*>& modules) {
  if (std::count(modules.begin(), modules.end(), nullptr) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(argument), " has a null: expected modules that FullyShard was applied to"));
}

}  // namespace

FsdpModule::FsdpModule(std::vector<Module*> modules, std::shared_ptr<const DeviceMesh> mesh,
                       const FullyShardOptions& options)
    : modules_(std::move(modules)), mesh_(std::move(mesh)), options_(options) {
  if (const bool* reshard = std::get_if<bool>(&options_.reshard_after_forward)) {
    controls_.reshard_after_forward = *reshard;
  } else if (const int* ranks = std::get_if<int>(&options_.reshard_after_forward)) {
    controls_.reshard_after_forward = *ranks > 1;
  }
}

FsdpModule::~FsdpModule() = default;

FsdpModule* FsdpModule::Of(const Module& module) { return dynamic_cast<FsdpModule*>(module.extension()); }

// A module that joined another root keeps it: the outermost module that is used first is the root for good.
absl::StatusOr<FsdpRoot*> FsdpModule::Root() {
  if (own_root_ == nullptr) {
    if (root_ != nullptr) {
      const std::string name =
          unit_ >= 0 ? root_->units().unit(unit_).display_name() : std::string(modules_[0]->type_name());
      return absl::FailedPreconditionError(
          absl::StrCat("module \"", name, "\" is not the root: call the outermost module's"));
    }
    FSDP_ASSIGN_OR_RETURN(own_root_, FsdpRoot::Create(*this));
  }
  return own_root_.get();
}

std::shared_ptr<UnitStreams> FsdpModule::streams() const {
  return own_root_ == nullptr ? streams_ : own_root_->executor().runtime().streams();
}

void FsdpModule::JoinRoot(FsdpRoot* root, int unit) {
  root_ = root;
  unit_ = unit;
}

absl::StatusOr<Tape> FsdpModule::NewTape(bool training) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, AnyRoot());
  return Tape(root->executor().runtime().compute_stream(), *root->layer_ops(), training);
}

absl::StatusOr<std::vector<ShardedParameter*>> FsdpModule::parameters() {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  std::vector<ShardedParameter*> parameters;
  for (const auto& unit : root->units().units()) {
    for (const auto& parameter : unit->sharded_parameters) parameters.push_back(parameter.get());
  }
  return parameters;
}

absl::StatusOr<StateDict> FsdpModule::GetStateDict() {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("GetStateDict"));
  if (!root->units().shards_are_dim0_chunks()) {  // rows of parts are not rows of the whole tensors
    return GetModelState(root->module(), root->units(), {.type = StateDictType::kSharded});
  }
  FSDP_ASSIGN_OR_RETURN(StateDict state, LiveModelState(root->module(), root->units()));
  state.type = StateDictType::kSharded;  // this rank's rows are its dim-0 chunks, so SHARDED needs no gathering
  return state;
}

absl::StatusOr<StateDict> FsdpModule::GetFullStateDict(const FullStateDictConfig& config) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("GetFullStateDict"));
  const StateForm form{StateDictType::kFull, config.offload_to_cpu, config.rank0_only};
  return GetModelState(root->module(), root->units(), form);
}

absl::StatusOr<IncompatibleKeys> FsdpModule::LoadStateDict(const StateDict& state,
                                                           const LoadStateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("LoadStateDict"));
  const StateDictType type = options.broadcast_from_rank0 ? StateDictType::kFull : state.type;
  return LoadModelState(root->module(), root->units(), state, type, options);
}

absl::Status FsdpModule::AddOptimStateDict(Optimizer& optimizer, StateDict& state, const OptimStateDictConfig& config) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("AddOptimStateDict"));
  const StateForm form = FormOf(config);
  if (!state.empty() && state.type != form.type) {
    return absl::InvalidArgumentError(
        absl::StrCat("AddOptimStateDict: the config is of ", std::string(StateDictTypeName(form.type)),
                     ", the state dict is ", std::string(StateDictTypeName(state.type)),
                     ": expected one type; give the optimizer's config of the state dict's type, or an empty one"));
  }
  state.type = form.type;
  return AddOptimState(root->units(), optimizer, form, state);
}

absl::StatusOr<std::vector<std::string>> FsdpModule::LoadOptimStateDict(const StateDict& state, Optimizer& optimizer,
                                                                        const LoadStateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("LoadOptimStateDict"));
  const StateDictType type = options.broadcast_from_rank0 ? StateDictType::kFull : state.type;
  return LoadOptimState(root->units(), state, SourceOf(type, options), options.strict, optimizer);
}

absl::StatusOr<std::vector<AttributeDifference>> FsdpModule::Restore(
    Optimizer* optimizer, const std::function<absl::Status(StateDict& wanted)>& load, const RestoreOptions& options) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("Restore"));
  return RestoreState(root->module(), root->units(), optimizer, load, options, root->stream());
}

absl::StatusOr<StateDict> FsdpModule::DescribeFullState(Optimizer* optimizer) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  return fsdp::DescribeFullState(root->module(), root->units(), optimizer);
}

absl::Status FsdpModule::StreamFullState(Optimizer* optimizer, const FullStatePart& visit) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("StreamFullState"));
  return fsdp::StreamFullState(root->module(), root->units(), optimizer, visit);
}

absl::StatusOr<float> FsdpModule::ClipGradNorm(float max_norm, double norm_type) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("clip_grad_norm"));
  return ClipShardedGradNorm(root->module(), root->units(), max_norm, norm_type, root->stream());
}

absl::StatusOr<GradClip> FsdpModule::DeferClipGradNorm(float max_norm) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckBetweenPasses("clip_grad_norm"));
  return DeferClipShardedGradNorm(root->module(), root->units(), max_norm, root->stream());
}

absl::StatusOr<Tensor> FsdpModule::FullGradient(std::string_view parameter) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("FullGradient"));
  return GatherGradient(root->units(), parameter);
}

// The root that this module joined, or itself.
absl::StatusOr<FsdpRoot*> FsdpModule::AnyRoot() {
  if (root_ == nullptr) return Root();
  return root_;
}

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> FsdpModule::SummonFullParams(
    const SummonFullParamsOptions& options) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, AnyRoot());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("SummonFullParams"));
  return SummonFullParamsGuard::Create(*modules_[0], root->units(), options);
}

absl::Status FsdpModule::Apply(const std::function<absl::Status(Module&)>& fn) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, AnyRoot());
  FSDP_RETURN_IF_ERROR(root->executor().CheckIdle("Apply"));
  return ApplyToModules(*modules_[0], root->units(), fn);
}

absl::Status FsdpModule::Unshard() {
  FSDP_ASSIGN_OR_RETURN(UnshardHandle handle, UnshardAsync());
  return handle.Wait();
}

// A module without parameters of its own is not a unit, so there is nothing to wait for.
absl::StatusOr<UnshardHandle> FsdpModule::UnshardAsync() {
  if (root_ == nullptr) FSDP_RETURN_IF_ERROR(Root().status());
  if (unit_ < 0) return UnshardHandle();
  FSDP_RETURN_IF_ERROR(root_->executor().Unshard(unit_));
  return UnshardHandle([executor = &root_->executor(), unit = unit_] {  //
    return executor->WaitForUnshard(unit);
  });
}

absl::Status FsdpModule::Reshard() {
  if (root_ != nullptr && unit_ >= 0) root_->executor().Reshard(unit_);
  return absl::OkStatus();
}

// Makes `change` to the controls of this module and, with kYes, of all below; and to their units' if there is a root.
absl::Status FsdpModule::Set(const std::function<void(UnitControls&)>& change, Recurse recurse) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  change(controls_);
  if (root_ != nullptr) root_->Apply(*this, unit_);
  if (recurse == Recurse::kNo) return absl::OkStatus();
  for (Module* module : modules_) {
    for (const auto& [name, below] : module->NamedModules()) {
      FsdpModule* inner = Of(*below);
      if (inner != nullptr && inner != this) FSDP_RETURN_IF_ERROR(inner->Set(change, Recurse::kNo));
    }
  }
  return absl::OkStatus();
}

absl::Status FsdpModule::CheckBetweenPasses() const {
  return root_ == nullptr ? absl::OkStatus() : root_->executor().CheckBetweenPasses("a setting of an FsdpModule");
}

absl::Status FsdpModule::set_requires_gradient_sync(bool requires_gradient_sync, Recurse recurse) {
  return Set([=](UnitControls& s) { s.requires_gradient_sync = requires_gradient_sync; }, recurse);
}

absl::Status FsdpModule::set_requires_all_reduce(bool requires_all_reduce, Recurse recurse) {
  return Set([=](UnitControls& s) { s.requires_all_reduce = requires_all_reduce; }, recurse);
}

absl::Status FsdpModule::set_reshard_after_forward(bool reshard_after_forward, Recurse recurse) {
  return Set([=](UnitControls& s) { s.reshard_after_forward = reshard_after_forward; }, recurse);
}

absl::Status FsdpModule::set_reshard_after_backward(bool reshard_after_backward, Recurse recurse) {
  return Set([=](UnitControls& s) { s.reshard_after_backward = reshard_after_backward; }, recurse);
}

absl::Status FsdpModule::set_unshard_in_backward(bool unshard_in_backward) {
  return Set([=](UnitControls& s) { s.unshard_in_backward = unshard_in_backward; }, Recurse::kNo);
}

absl::Status FsdpModule::set_is_last_backward(bool is_last_backward) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  root->executor().set_is_last_backward(is_last_backward);
  return absl::OkStatus();
}

absl::Status FsdpModule::set_gradient_divide_factor(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient_divide_factor=", factor, ": expected a finite number above 0"));
  }
  return Set([=](UnitControls& s) { s.gradient_divide_factor = factor; }, Recurse::kNo);
}

absl::Status FsdpModule::set_force_sum_reduction_for_comms(bool force) {
  return Set([=](UnitControls& s) { s.force_sum_reduction = force; }, Recurse::kNo);
}

absl::Status FsdpModule::set_all_reduce_hook(AllReduceHook hook, Stream* stream) {
  if (stream != nullptr && mesh_->ndim() == 2) {
    return absl::InvalidArgumentError(absl::StrCat("set_all_reduce_hook: stream \"", std::string(stream->name()),
                                                   "\" on mesh ", mesh_->ToString(),
                                                   ": expected none on a mesh of two dimensions"));
  }
  if (stream != nullptr && &stream->device() != mesh_->all()->device().get()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "set_all_reduce_hook: stream \"", std::string(stream->name()), "\" is another device's (",
        stream->device().name(), "): expected one of the mesh's device (", mesh_->all()->device()->name(), ")"));
  }
  return Set(
      [&](UnitControls& s) {
        s.all_reduce_hook = hook;
        s.all_reduce_hook_stream = stream;
      },
      Recurse::kNo);
}

absl::Status FsdpModule::set_custom_all_gather(std::shared_ptr<AllGatherComm> comm, Recurse recurse) {
  return Set([&](UnitControls& s) { s.all_gather = comm; }, recurse);
}

absl::Status FsdpModule::set_custom_reduce_scatter(std::shared_ptr<ReduceScatterComm> comm) {
  return Set([&](UnitControls& s) { s.reduce_scatter = comm; }, Recurse::kNo);
}

absl::Status FsdpModule::set_modules_to_forward_prefetch(const std::vector<FsdpModule*>& modules) {
  FSDP_RETURN_IF_ERROR(CheckPrefetch("modules_to_forward_prefetch", modules));
  if (root_ != nullptr) FSDP_RETURN_IF_ERROR(root_->CheckPrefetch(*this, "modules_to_forward_prefetch", modules));
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  forward_prefetch_ = modules;
  // Changes no control, but makes the root translate the list to units.
  return Set([](UnitControls&) {}, Recurse::kNo);
}

absl::Status FsdpModule::set_modules_to_backward_prefetch(const std::vector<FsdpModule*>& modules) {
  FSDP_RETURN_IF_ERROR(CheckPrefetch("modules_to_backward_prefetch", modules));
  if (root_ != nullptr) FSDP_RETURN_IF_ERROR(root_->CheckPrefetch(*this, "modules_to_backward_prefetch", modules));
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  backward_prefetch_ = modules;
  return Set([](UnitControls&) {}, Recurse::kNo);
}

absl::Status FsdpModule::set_post_optim_event(Event event) {
  FSDP_ASSIGN_OR_RETURN(FsdpRoot * root, Root());
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  root->executor().set_post_optim_event(std::move(event));
  return absl::OkStatus();
}

absl::Status FsdpModule::PreForward(Module& module, absl::Span<Tensor>, Tape&) {
  return absl::FailedPreconditionError(absl::StrCat("forward of a ", std::string(module.type_name()),
                                                    " before its root was used: make the tape with NewTape() of the "
                                                    "outermost module that FullyShard was applied to, or of this one, "
                                                    "which is then a root of its own"));
}

absl::Status FsdpModule::PostForward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status FsdpModule::PreBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status FsdpModule::PostBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }

}  // namespace fsdp
