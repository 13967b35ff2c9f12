// SPDX-License-Identifier: Apache-2.0
//
// The facade only joins the parts. Wrap makes them in this order, each from the one before:
//
//   Partition   which modules are units           local, so its error is agreed on by all ranks before the next part
//   settings    options and overrides by unit     UnitSettingsOf
//   UnitStore   memory and first values           collective
//   Executor    hooks, schedule, slots            collective
//
// Calls that read or change parameters between steps go through Executor::CheckIdle first: it refuses them within a
// pass, and waits for streams. DeferClipGradNorm and the captured step are the exceptions, since they must not wait.
#include "fsdp/fsdp/fully_sharded_data_parallel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/clip_grad_norm.h"
#include "fsdp/fsdp/fsdp_root.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state.h"
#include "fsdp/fsdp/state/optim_state_reader.h"
#include "fsdp/fsdp/summon_full_params.h"
#include "fsdp/fsdp/units/capture_check.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/device_layer_ops.h"

namespace fsdp {

namespace {

absl::Status CheckDeviceId(const FsdpOptions& options, const Device& device) {
  if (!options.device_id.has_value()) return absl::OkStatus();
  const std::string actual = device.name();
  if (actual == *options.device_id || actual.substr(0, actual.find(':')) == *options.device_id) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("inconsistent compute device: device_id is \"", *options.device_id,
                                                 "\", but the process group's device is \"", actual,
                                                 "\"; make the group on the device that is wanted"));
}

}  // namespace

FullyShardedDataParallel::FullyShardedDataParallel() = default;
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::Wrap(std::unique_ptr<Module> module,
                                                                                         ShardGroups groups,
                                                                                         const FsdpOptions& options) {
  std::unique_ptr<FullyShardedDataParallel> model(new FullyShardedDataParallel());
  model->module_ = std::move(module);
  model->module_->AssignNames();
  if (options.shard_group_size > 0 && options.auto_wrap_policy) {
    FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(options.shard_group_size));
  }
  FSDP_RETURN_IF_ERROR(CheckDeviceId(options, *groups.any().device()));
  absl::StatusOr<Partition> partition = Partition::ByPolicy(*model->module_, options);
  FSDP_RETURN_IF_ERROR(groups.AgreeOn(partition.status()));
  std::vector<UnitSettings> settings;
  for (const UnitModule& unit : partition->units) {
    settings.push_back(UnitSettingsOf(options, unit.overrides, unit.name.empty()));
  }
  FSDP_ASSIGN_OR_RETURN(model->layer_ops_, LayerOpsFor(*groups.any().device()));
  const ParameterInit init{options.init_seed, options.param_init_fn, options.sync_module_states};
  FSDP_ASSIGN_OR_RETURN(model->units_, UnitStore::Create(*std::move(partition), settings, std::move(groups), init));
  model->units_->set_trace(options.trace);
  FSDP_ASSIGN_OR_RETURN(model->executor_, Executor::Create(*model->module_, *model->units_,
                                                           {.backward_prefetch = options.backward_prefetch,
                                                            .forward_prefetch = options.forward_prefetch,
                                                            .limit_all_gathers = options.limit_all_gathers,
                                                            .check_execution_order = options.check_execution_order,
                                                            .root = UnitSettingsOf(options, {}, /*is_root=*/true)}));
  return model;
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::FromFullyShard(
    std::unique_ptr<Module> module) {
  FsdpModule* fully_sharded = FsdpModule::Of(*module);
  if (fully_sharded == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("FromFullyShard of a ", std::string(module->type_name()),
                                                   ": expected a module that FullyShard was applied to"));
  }
  FSDP_ASSIGN_OR_RETURN(const FsdpRoot* root, fully_sharded->Root());
  std::unique_ptr<FullyShardedDataParallel> model(new FullyShardedDataParallel());
  model->module_ = std::move(module);
  model->layer_ops_ = root->layer_ops();
  model->units_ = root->shared_units();
  model->executor_ = root->shared_executor();
  return model;
}

ProcessGroup& FullyShardedDataParallel::group() const {
  const std::shared_ptr<ProcessGroup>& all = units_->groups().all();
  return all ? *all : *units_->root_group();
}

Device& FullyShardedDataParallel::device() const { return units_->device(); }

Tape FullyShardedDataParallel::NewTape(bool training) const { return Tape(stream(), *layer_ops_, training); }

absl::StatusOr<Tensor> FullyShardedDataParallel::Forward(const Tensor& input, Tape& tape) {
  return module_->Forward(input, tape);
}

absl::StatusOr<Tensor> FullyShardedDataParallel::Backward(const Tensor& grad_output, Tape& tape) {
  return module_->Backward(grad_output, tape);
}

const std::vector<std::string>& FullyShardedDataParallel::warnings() const { return units_->warnings(); }

std::vector<ShardedParameter*> FullyShardedDataParallel::parameters() const {
  std::vector<ShardedParameter*> parameters;
  for (const auto& unit : units_->units()) {
    for (const auto& parameter : unit->sharded_parameters) parameters.push_back(parameter.get());
  }
  return parameters;
}

absl::StatusOr<float> FullyShardedDataParallel::ClipGradNorm(float max_norm, double norm_type) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("clip_grad_norm"));
  return ClipShardedGradNorm(*module_, *units_, max_norm, norm_type, stream());
}

absl::StatusOr<GradClip> FullyShardedDataParallel::DeferClipGradNorm(float max_norm) {
  FSDP_RETURN_IF_ERROR(executor_->CheckBetweenPasses("clip_grad_norm"));
  return DeferClipShardedGradNorm(*module_, *units_, max_norm, stream());
}

absl::StatusOr<StateDict> FullyShardedDataParallel::GetStateDict() {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("GetStateDict"));
  return GetModelState(*module_, *units_, FormOf(settings_.state_dict_config()));
}

absl::Status FullyShardedDataParallel::AddOptimStateDict(Optimizer& optimizer, StateDict& state) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("AddOptimStateDict"));
  return AddOptimState(*units_, optimizer, FormOf(settings_.optim_state_dict_config()), state);
}

absl::Status FullyShardedDataParallel::LoadStateDict(const StateDict& state) {
  return LoadStateDict(state, LoadStateDictOptions{}).status();
}

absl::StatusOr<IncompatibleKeys> FullyShardedDataParallel::LoadStateDict(const StateDict& state,
                                                                         const LoadStateDictOptions& options) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("LoadStateDict"));
  return LoadModelState(*module_, *units_, state, settings_.type(), options);
}

absl::Status FullyShardedDataParallel::LoadOptimStateDict(const StateDict& state, Optimizer& optimizer) {
  return LoadOptimStateDict(state, optimizer, LoadStateDictOptions{}).status();
}

absl::StatusOr<std::vector<std::string>> FullyShardedDataParallel::LoadOptimStateDict(
    const StateDict& state, Optimizer& optimizer, const LoadStateDictOptions& options) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("LoadOptimStateDict"));
  return LoadOptimState(*units_, state, SourceOf(settings_, options), options.strict, optimizer);
}

absl::StatusOr<StateDict> FullyShardedDataParallel::OptimStateDictToLoad(const StateDict& state,
                                                                         const Optimizer& optimizer) {
  FSDP_RETURN_IF_ERROR(units_->groups().AgreeOn(CheckKeyedByName(state, optimizer)));
  return OptimSlices(*units_, state, SourceOf(settings_, LoadStateDictOptions{}));
}

absl::Status FullyShardedDataParallel::Restore(Optimizer* optimizer,
                                               const std::function<absl::Status(StateDict& wanted)>& load) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("Restore"));
  FSDP_ASSIGN_OR_RETURN(StateDict wanted, LiveModelState(*module_, *units_));
  if (optimizer == nullptr) return units_->groups().AgreeOn(load(wanted));
  FSDP_ASSIGN_OR_RETURN(const LiveOptimState live, LiveOptimState::AddTo(wanted, *optimizer));
  FSDP_RETURN_IF_ERROR(units_->groups().AgreeOn(load(wanted)));
  live.Commit(*optimizer);
  return absl::OkStatus();
}

absl::StatusOr<StateDict> FullyShardedDataParallel::DescribeFullState(Optimizer* optimizer) {
  return fsdp::DescribeFullState(*module_, *units_, optimizer);
}

absl::Status FullyShardedDataParallel::StreamFullState(Optimizer* optimizer, const FullStatePart& visit) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("StreamFullState"));
  return fsdp::StreamFullState(*module_, *units_, optimizer, visit);
}

absl::Status FullyShardedDataParallel::CheckCanCapture() const { return fsdp::CheckCanCapture(*units_); }

absl::Status FullyShardedDataParallel::PrepareReplay() { return executor_->PrepareReplay(); }

StateDictSettings FullyShardedDataParallel::set_state_dict_settings(const StateDictSettings& settings) {
  return std::exchange(settings_, settings);
}

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> FullyShardedDataParallel::SummonFullParams(
    const SummonFullParamsOptions& options, Module* module) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("SummonFullParams"));
  return SummonFullParamsGuard::Create(module != nullptr ? *module : *module_, *units_, options,
                                       [this] { return executor_->GatherAnew(); });
}

absl::Status FullyShardedDataParallel::Apply(const std::function<absl::Status(Module&)>& fn) {
  FSDP_RETURN_IF_ERROR(executor_->CheckIdle("Apply"));
  return ApplyToModules(*module_, *units_, fn, [this] { return executor_->GatherAnew(); });
}

std::vector<Module::NamedModule> FullyShardedDataParallel::FsdpModules(bool root_only) const {
  std::vector<Module::NamedModule> modules{{"", module_.get()}};
  for (const auto& unit : units_->units()) {
    if (!root_only && unit->module != module_.get()) modules.emplace_back(unit->name, unit->module);
  }
  return modules;
}

void FullyShardedDataParallel::set_requires_gradient_sync(bool sync) { executor_->set_sync(sync); }

bool FullyShardedDataParallel::requires_gradient_sync() const { return executor_->sync(); }

absl::Status FullyShardedDataParallel::RegisterCommHook(CommHook hook) {
  return executor_->runtime().gradients().SetCommHook(std::move(hook));
}

const MemoryPlan& FullyShardedDataParallel::memory_plan() const { return executor_->runtime().plan(); }

Schedule FullyShardedDataParallel::StepSchedule(int micro_steps) const { return executor_->PlanStep(micro_steps); }

std::vector<std::string> FullyShardedDataParallel::UnitNames() const {
  std::vector<std::string> names;
  for (const auto& unit : units_->units()) names.push_back(unit->display_name());
  return names;
}

std::vector<FlatUnitLayout> FullyShardedDataParallel::UnitLayouts() const { return EmptyStateDict(*units_).units; }

Stream& FullyShardedDataParallel::stream() const { return executor_->runtime().compute_stream(); }

NoSyncGuard::NoSyncGuard(FullyShardedDataParallel& model) : model_(model), before_(model.requires_gradient_sync()) {
  model_.set_requires_gradient_sync(false);
}

NoSyncGuard::~NoSyncGuard() { model_.set_requires_gradient_sync(before_); }

StateDictTypeGuard::StateDictTypeGuard(FullyShardedDataParallel& model, const StateDictSettings& settings)
    : model_(model), before_(model.set_state_dict_settings(settings)) {}

StateDictTypeGuard::~StateDictTypeGuard() { model_.set_state_dict_settings(before_); }

}  // namespace fsdp
