// SPDX-License-Identifier: Apache-2.0
//
// Before the root's first use a FsdpModule has no tree: it keeps its controls, and its hooks refuse forward. OwnTree()
// then makes the FsdpModuleTree, which joins all modules below; from then on the executor has the hooks, and each
// setter writes twice: to the module's own controls, which getters and recursion read, and through
// FsdpModuleTree::Apply to its unit's, which the executor reads at the start of the next pass. Prefetch lists are kept
// as modules here, because units have no index before there is a root.
#include "fsdp/fsdp/fsdp_module.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/fsdp/fsdp_module_tree.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/units/unit_windows.h"

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
    : ModelOperations(/*settings=*/std::nullopt),
      modules_(std::move(modules)),
      mesh_(std::move(mesh)),
      options_(options) {
  // The unit's group size comes from the options (SettingsOf in fsdp_module_tree.cc); the control only says whether
  // forward reshards at all.
  if (const bool* reshard = std::get_if<bool>(&options_.reshard_after_forward)) {
    controls_.reshard_after_forward = *reshard;
  } else if (const int* ranks = std::get_if<int>(&options_.reshard_after_forward)) {
    controls_.reshard_after_forward = *ranks > 1;
  }
  for (Module* module : modules_) {
    for (const auto& [name, below] : module->NamedModules()) {
      if (FsdpModule* inner = Of(*below); inner != nullptr) inner->outer_ = this;
    }
  }
}

FsdpModule::~FsdpModule() = default;

FsdpModule* FsdpModule::Of(const Module& module) { return dynamic_cast<FsdpModule*>(module.extension()); }

// A module that joined another root keeps it: the outermost module that is used first is the root for good.
absl::StatusOr<FsdpModuleTree*> FsdpModule::OwnTree() {
  if (own_tree_ == nullptr) {
    if (tree_ != nullptr) {
      const std::string name =
          unit_ >= 0 ? tree_->model()->units().unit(unit_).display_name() : std::string(modules_[0]->type_name());
      return absl::FailedPreconditionError(
          absl::StrCat("module \"", name, "\" is not the root: call the outermost module's"));
    }
    // Collective: all ranks must make the tree at the same call. A failure leaves own_tree_ null.
    FSDP_ASSIGN_OR_RETURN(own_tree_, FsdpModuleTree::Create(*this));
  }
  return own_tree_.get();
}

// A module below a root uses the root's tree; only the first use of the outermost module makes one.
absl::StatusOr<FsdpModuleTree*> FsdpModule::AnyTree() {
  if (tree_ == nullptr) return OwnTree();
  return tree_;
}

FsdpModule& FsdpModule::Outermost() {
  FsdpModule* module = this;
  while (module->outer_ != nullptr) module = module->outer_;
  return *module;
}

absl::StatusOr<std::shared_ptr<ShardedModel>> ShardedModel::Of(FsdpModule& module) {
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, module.OwnTree());
  return tree->model();
}

absl::StatusOr<ShardedModel*> FsdpModule::Model() {
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, OwnTree());
  return tree->model().get();
}

std::shared_ptr<UnitStreams> FsdpModule::streams() const {
  return own_tree_ == nullptr ? streams_ : own_tree_->model()->runtime().streams();
}

void FsdpModule::JoinRoot(FsdpModuleTree* tree, int unit) {
  tree_ = tree;
  unit_ = unit;
}

absl::StatusOr<Tape> FsdpModule::NewTape(bool training) {
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, AnyTree());
  return tree->model()->NewTape(training);
}

absl::StatusOr<std::vector<ShardedParameter*>> FsdpModule::parameters() {
  FSDP_ASSIGN_OR_RETURN(const ShardedModel* model, Model());
  return model->parameters();
}

absl::StatusOr<StateDict> FsdpModule::GetFullStateDict(const FullStateDictConfig& config,
                                                       const StateDictOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const ShardedModel* model, IdleModel("GetFullStateDict"));
  const StateForm form{StateDictType::kFull, config.offload_to_cpu, config.rank0_only, options.ignore_frozen_params};
  return GetModelState(model->module(), model->units(), form);
}

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> FsdpModule::SummonFullParams(
    const SummonFullParamsOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, AnyTree());
  return tree->model()->SummonFullParams(*modules_[0], options);
}

absl::Status FsdpModule::Apply(const std::function<absl::Status(Module&)>& fn) {
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, AnyTree());
  return tree->model()->Apply(*modules_[0], fn);
}

absl::Status FsdpModule::Unshard() {
  FSDP_ASSIGN_OR_RETURN(UnshardHandle handle, UnshardAsync());
  return handle.Wait();
}

// A module without own parameters is not a unit, so there is nothing to wait for.
absl::StatusOr<UnshardHandle> FsdpModule::UnshardAsync() {
  // Only the root's first use gives this unit parameters. Its own first use would make it a root by itself.
  if (tree_ == nullptr) FSDP_RETURN_IF_ERROR(Outermost().OwnTree().status());
  FSDP_ASSIGN_OR_RETURN(const FsdpModuleTree* tree, AnyTree());
  if (unit_ < 0) return UnshardHandle();
  Executor& executor = tree->model()->executor();
  FSDP_RETURN_IF_ERROR(executor.Unshard(unit_));
  // The handle is valid as long as the model: it points to the executor.
  return UnshardHandle([executor = &executor, unit = unit_] {  //
    return executor->WaitForUnshard(unit);
  });
}

absl::Status FsdpModule::Reshard() {
  if (tree_ != nullptr && unit_ >= 0) tree_->model()->executor().Reshard(unit_);
  return absl::OkStatus();
}

// Makes `change` to the controls of this module and, with kYes, of all below; and to their units' if there is a root.
absl::Status FsdpModule::Set(const std::function<void(UnitControls&)>& change, Recurse recurse) {
  // Refused within a pass, because the schedule of the pass was made from the controls as they were.
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  change(controls_);
  if (tree_ != nullptr) tree_->Apply(*this);
  if (recurse == Recurse::kNo) return absl::OkStatus();
  for (Module* module : modules_) {
    for (const auto& [name, below] : module->NamedModules()) {
      FsdpModule* inner = Of(*below);
      // kNo, because NamedModules lists all levels below.
      if (inner != nullptr && inner != this) FSDP_RETURN_IF_ERROR(inner->Set(change, Recurse::kNo));
    }
  }
  return absl::OkStatus();
}

absl::Status FsdpModule::CheckBetweenPasses() const {
  return tree_ == nullptr ? absl::OkStatus() : tree_->model()->gate().CheckBetweenPasses("a setting of an FsdpModule");
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
  FSDP_ASSIGN_OR_RETURN(const ShardedModel* model, Model());
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  model->executor().set_is_last_backward(is_last_backward);
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

absl::Status FsdpModule::set_reduce_scatter_max_input_buffers(int max_input_buffers, Recurse recurse) {
  if (max_input_buffers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce_scatter_max_input_buffers=", max_input_buffers, ": expected at least 1"));
  }
  return Set([=](UnitControls& s) { s.reduce_scatter_max_input_buffers = max_input_buffers; }, recurse);
}

absl::Status FsdpModule::set_separate_reduce_scatter_group(bool enable, Recurse recurse) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  std::shared_ptr<ProcessGroup> group = enable ? controls_.reduce_scatter_group : nullptr;
  if (enable && group == nullptr) {
    ProcessGroup& shard = *mesh_->group(mesh_->ndim() - 1);
    FSDP_ASSIGN_OR_RETURN(group, shard.Split(/*color=*/0, /*key=*/shard.rank()));
  }
  return Set([&](UnitControls& s) { s.reduce_scatter_group = group; }, recurse);
}

absl::Status FsdpModule::set_symm_mem_for_comm(bool enable, Recurse recurse) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  ProcessGroup& shard = *mesh_->group(mesh_->ndim() - 1);
  if (enable && shard.size() > 1) {
    FSDP_RETURN_IF_ERROR(SymmetricGroupOf(shard, "set_symm_mem_for_comm").status());
    if (controls_.all_gather != nullptr || controls_.reduce_scatter != nullptr) {
      return absl::FailedPreconditionError(
          "set_symm_mem_for_comm: the unit has a custom all-gather or reduce-scatter, which allocates its own memory: "
          "expected none");
    }
  }
  return Set(
      [=](UnitControls& s) {
        s.symm_mem = enable;
        if (!enable) s.all_gather_group = nullptr;
      },
      recurse);
}

absl::Status FsdpModule::set_copy_engine_all_gather(bool enable, Recurse recurse) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  if (enable && !controls_.symm_mem) {
    return absl::FailedPreconditionError(
        "set_copy_engine_all_gather: the unit's memory is no symmetric window: expected set_symm_mem_for_comm before");
  }
  std::shared_ptr<ProcessGroup> group = enable ? controls_.all_gather_group : nullptr;
  ProcessGroup& shard = *mesh_->group(mesh_->ndim() - 1);
  if (enable && group == nullptr && shard.size() > 1) {
    FSDP_ASSIGN_OR_RETURN(group, SplitForCopyEngines(shard, "set_copy_engine_all_gather"));
  }
  return Set(
      [&](UnitControls& s) {
        if (s.symm_mem) s.all_gather_group = group;
      },
      recurse);
}

absl::Status FsdpModule::set_keep_unsharded_storage(bool keep, Recurse recurse) {
  return Set([=](UnitControls& s) { s.keep_unsharded_storage = keep; }, recurse);
}

absl::Status FsdpModule::ResetIterState() {
  if (tree_ == nullptr) return absl::OkStatus();  // nothing has run
  FSDP_ASSIGN_OR_RETURN(const ShardedModel* model, Model());
  return model->executor().ResetIterState();
}

absl::Status FsdpModule::set_all_reduce_hook(AllReduceHook hook, Stream* stream) {
  // As in PyTorch, which refuses a stream with native HSDP.
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
  if (tree_ != nullptr) FSDP_RETURN_IF_ERROR(tree_->CheckPrefetch(*this, "modules_to_forward_prefetch", modules));
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  forward_prefetch_ = modules;
  // Changes no control, but makes the root translate the list to units.
  return Set([](UnitControls&) {}, Recurse::kNo);
}

absl::Status FsdpModule::set_modules_to_backward_prefetch(const std::vector<FsdpModule*>& modules) {
  FSDP_RETURN_IF_ERROR(CheckPrefetch("modules_to_backward_prefetch", modules));
  if (tree_ != nullptr) FSDP_RETURN_IF_ERROR(tree_->CheckPrefetch(*this, "modules_to_backward_prefetch", modules));
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  backward_prefetch_ = modules;
  // As for the forward list.
  return Set([](UnitControls&) {}, Recurse::kNo);
}

absl::Status FsdpModule::set_post_optim_event(Event event) {
  FSDP_ASSIGN_OR_RETURN(const ShardedModel* model, Model());
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses());
  model->executor().set_post_optim_event(std::move(event));
  return absl::OkStatus();
}

absl::Status FsdpModule::PreForward(Module& module, absl::Span<Tensor>, Tape&) {
  return absl::FailedPreconditionError(absl::StrCat("forward of a ", std::string(module.type_name()),
                                                    " before its root was used: make the tape with NewTape() of the "
                                                    "outermost module that FullyShard was applied to, or of this one, "
                                                    "which is then a root of its own"));
}

// After OwnTree the executor replaces these hooks.
absl::Status FsdpModule::PostForward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status FsdpModule::PreBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status FsdpModule::PostBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }

}  // namespace fsdp
