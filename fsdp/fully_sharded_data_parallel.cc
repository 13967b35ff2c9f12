// SPDX-License-Identifier: Apache-2.0
//
// The facade only joins the parts. Wrap makes them in this order, each from the previous one:
//
//   Partition   checked options, units            local, so its error is agreed on by all ranks before the next part
//   settings    options and overrides by unit     UnitSettingsOf
//   UnitStore   memory and first values           collective
//   Executor    hooks, schedule, slots            collective, by ShardedModel::Create
#include "fsdp/fsdp/fully_sharded_data_parallel.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state_reader.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_windows.h"

namespace fsdp {

namespace {

absl::Status CheckDeviceId(const FsdpOptions& options, const Device& device) {
  if (!options.device_id.has_value()) return absl::OkStatus();
  const std::string actual = device.name();
  // "cuda" matches any CUDA device, "cuda:1" only that one.
  if (actual == *options.device_id || actual.substr(0, actual.find(':')) == *options.device_id) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("inconsistent compute device: device_id is \"", *options.device_id,
                                                 "\", but the process group's device is \"", actual,
                                                 "\"; make the group on the device that is wanted"));
}

// A module without own parameters, so with nothing to gather: FSDP1 casts the inputs only of the root.
UnitSettings SettingsOfBare(const FsdpOptions& options, const UnitModule& bare) {
  UnitSettings settings = UnitSettingsOf(options, bare.overrides, bare.is_root);
  if (!bare.is_root) settings.cast_inputs = settings.restore_output_dtype = false;
  if (bare.name.empty() && !bare.is_root) settings.activation_checkpointing = false;  // a plain module around the roots
  return settings;
}

// PyTorch recomputes the modules inside its checkpoint_wrapper, and this model the wrapped ones, so a program may
// request recomputation and get none.
void WarnOfNoRecomputation(const FsdpOptions& options, UnitStore& units) {
  bool some = false;
  // Called for units and bare modules alike: either may have been asked to recompute.
  const auto visit = [&](const std::string& name, const Module& module, const UnitSettings& settings) {
    if (!settings.activation_checkpointing) return;
    some = true;
    if (module.has_forward()) return;
    units.AddWarning(absl::StrCat("activation_checkpointing has no effect on ", name, ", a ",
                                  std::string(module.type_name()), ", which has no forward"));
  };
  for (const auto& unit : units.units()) visit(unit->display_name(), *unit->module, unit->settings);
  for (const BareModule& bare : units.bare_modules()) visit(bare.name, *bare.modules[0], bare.settings);
  if (some || !options.activation_checkpointing) return;
  const bool none_wrapped = units.size() <= 1 && units.bare_modules().empty();
  units.AddWarning(none_wrapped
                       ? "activation_checkpointing has no effect: it is for modules that auto_wrap_policy wraps, "
                         "and none but the root is; set a policy"
                       : "activation_checkpointing has no effect: auto_wrap_policy takes it back for every "
                         "module that it wraps");
}

bool HasHybridUnit(const FsdpOptions& options, const Partition& partition) {
  bool hybrid = IsHybrid(options.sharding_strategy);
  for (const UnitModule& unit : partition.units) {
    if (unit.overrides.process_group.has_value()) continue;  // which has its two groups
    hybrid |= IsHybrid(unit.overrides.sharding_strategy.value_or(options.sharding_strategy));
  }
  return hybrid;
}

// Makes the two groups of hybrid units from one group. Needs a policy, as in PyTorch: only then are all units known
// here.
absl::Status MakeHybridGroups(const FsdpOptions& options, const Partition& partition, ShardGroups& groups) {
  if (!options.auto_wrap_policy || !HasHybridUnit(options, partition)) return absl::OkStatus();
  if (options.shard_group_size.has_value()) return groups.SplitForHybrid(*options.shard_group_size);
  return groups.is_one_group() ? groups.SplitByHosts() : absl::OkStatus();
}

// Names the parameters and cuts the module, after all checks that need only this rank.
absl::StatusOr<Partition> CheckAndCut(
    Module* module, const ShardGroups& groups, const FsdpOptions& options,
    const std::function<absl::StatusOr<Partition>(Module&, const FsdpOptions&)>& cut) {
  if (module == nullptr) return absl::InvalidArgumentError("Wrap: the module is null: expected the root of a model");
  FSDP_RETURN_IF_ERROR(Validate(options));
  // Before AssignNames, so that an argument error does not rename the caller's parameters.
  FSDP_RETURN_IF_ERROR(CheckDeviceId(options, *groups.any().device()));
  module->AssignNames();
  FSDP_ASSIGN_OR_RETURN(Partition partition, cut(*module, options));
  for (const UnitModule& unit : partition.units) {
    FSDP_RETURN_IF_ERROR(Annotate(Validate(unit.overrides), absl::StrCat("unit ", unit.display_name())));
  }
  FSDP_RETURN_IF_ERROR(CheckShardGroupSizeIsUsed(options, HasHybridUnit(options, partition)));
  return partition;
}

ModelSettings SettingsOf(const FsdpOptions& options, const Partition& partition) {
  ModelSettings settings;
  for (const UnitModule& unit : partition.units) {
    settings.units.push_back(UnitSettingsOf(options, unit.overrides, unit.is_root));
  }
  for (const UnitModule& bare : partition.bare) settings.bare.push_back(SettingsOfBare(options, bare));
  // These decide which collectives are issued and in which order, so all ranks must have the same.
  settings.agreement.Add("backward_prefetch", std::string(BackwardPrefetchName(options.backward_prefetch)));
  settings.agreement.Add("forward_prefetch", TrueOrFalse(options.forward_prefetch));
  settings.agreement.Add("check_execution_order", TrueOrFalse(options.check_execution_order));
  settings.agreement.Add("symm_mem_for_comm", TrueOrFalse(options.symm_mem_for_comm));
  settings.agreement.Add("copy_engine_all_gather", TrueOrFalse(options.copy_engine_all_gather));
  return settings;
}

}  // namespace

FullyShardedDataParallel::FullyShardedDataParallel(std::unique_ptr<Module> module)
    : ModelOperations(StateDictSettings()), module_(std::move(module)) {}
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::Wrap(std::unique_ptr<Module> module,
                                                                                         ShardGroups groups,
                                                                                         const FsdpOptions& options) {
  return WrapBy(Partition::ByPolicy, std::move(module), std::move(groups), options);
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::WrapRootsBelow(
    std::unique_ptr<Module> module, ShardGroups groups, const FsdpOptions& options) {
  FSDP_ASSIGN_OR_RETURN(auto model, WrapBy(Partition::BelowPlain, std::move(module), std::move(groups), options));
  model->below_plain_ = true;
  return model;
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::WrapBy(
    const CutModule& cut, std::unique_ptr<Module> module, ShardGroups groups, const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(groups.Validate());
  // Owned by the model before any hook is set: ShardedModel refers to the module for its whole life.
  std::unique_ptr<FullyShardedDataParallel> model(new FullyShardedDataParallel(std::move(module)));
  absl::StatusOr<Partition> partition = CheckAndCut(model->module_.get(), groups, options, cut);
  // CheckAndCut is local; the ranks must agree on its result before the first collective of the rest.
  FSDP_RETURN_IF_ERROR(groups.AllReduceStatus(partition.status()));
  FSDP_RETURN_IF_ERROR(MakeHybridGroups(options, *partition, groups));
  const ModelSettings settings = SettingsOf(options, *partition);
  const ParameterInit init{options.init_seed, options.param_init_fn, options.sync_module_states};
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<UnitStore> units,
                        UnitStore::Create(*std::move(partition), settings, std::move(groups), init));
  units->set_trace(options.trace);
  if (options.symm_mem_for_comm) FSDP_RETURN_IF_ERROR(UseWindows(*units, options.copy_engine_all_gather));
  FSDP_ASSIGN_OR_RETURN(model->model_, ShardedModel::Create(*model->module_, std::move(units),
                                                            {.backward_prefetch = options.backward_prefetch,
                                                             .forward_prefetch = options.forward_prefetch,
                                                             .limit_all_gathers = options.limit_all_gathers,
                                                             .check_execution_order = options.check_execution_order}));
  WarnOfNoRecomputation(options, model->model_->units());
  return model;
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::FromFullyShard(
    std::unique_ptr<Module> module) {
  if (module == nullptr) {
    return absl::InvalidArgumentError("FromFullyShard: the module is null: expected the root of a model");
  }
  FsdpModule* fully_sharded = FsdpModule::Of(*module);
  if (fully_sharded == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("FromFullyShard of a ", std::string(module->type_name()),
                                                   ": expected a module that FullyShard was applied to"));
  }
  // Shared with the FsdpModule, which remains usable.
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ShardedModel> shared, ShardedModel::Of(*fully_sharded));
  std::unique_ptr<FullyShardedDataParallel> model(new FullyShardedDataParallel(std::move(module)));
  model->model_ = std::move(shared);
  return model;
}

ShardedModel& ShardedModel::Of(const FullyShardedDataParallel& model) { return *model.model_; }

absl::StatusOr<ShardedModel*> FullyShardedDataParallel::Model() { return model_.get(); }

ProcessGroup& FullyShardedDataParallel::group() const {
  const UnitStore& units = model_->units();
  return units.groups().all() != nullptr ? *units.groups().all() : *units.root_group();
}

Device& FullyShardedDataParallel::device() const { return model_->units().device(); }

Tape FullyShardedDataParallel::NewTape(bool training) const { return model_->NewTape(training); }

absl::StatusOr<Tensor> FullyShardedDataParallel::Forward(const Tensor& input, Tape& tape) {
  return module_->Forward(input, tape);
}

absl::StatusOr<Tensor> FullyShardedDataParallel::Backward(const Tensor& grad_output, Tape& tape) {
  return module_->Backward(grad_output, tape);
}

absl::StatusOr<TensorList> FullyShardedDataParallel::Forward(TensorList inputs, Tape& tape) {
  return module_->Forward(std::move(inputs), tape);
}

absl::StatusOr<TensorList> FullyShardedDataParallel::Backward(TensorList grad_outputs, Tape& tape) {
  return module_->Backward(std::move(grad_outputs), tape);
}

const std::vector<std::string>& FullyShardedDataParallel::warnings() const { return model_->units().warnings(); }

std::vector<ShardedParameter*> FullyShardedDataParallel::parameters() const { return model_->parameters(); }

absl::StatusOr<StateDict> FullyShardedDataParallel::OptimStateDictToLoad(const StateDict& state,
                                                                         const Optimizer& optimizer) {
  FSDP_RETURN_IF_ERROR(model_->units().groups().AllReduceStatus(CheckKeyedByName(state, optimizer)));
  return OptimSlices(model_->units(), state, SourceOf(*settings_, LoadStateDictOptions{}));
}

absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> FullyShardedDataParallel::SummonFullParams(
    const SummonFullParamsOptions& options, Module* module) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<SummonFullParamsGuard> guard,
                        model_->SummonFullParams(module != nullptr ? *module : *module_, options));
  // Warned once for the model, since a program may summon at every step.
  static constexpr std::string_view kCopies =
      "summon full params: offload_to_cpu without rank0_only puts a copy for each rank into the memory of their host";
  const bool warned = std::count(warnings().begin(), warnings().end(), kCopies) != 0;
  if (options.offload_to_cpu && !options.rank0_only && !warned) model_->units().AddWarning(std::string(kCopies));
  return guard;
}

absl::Status FullyShardedDataParallel::Apply(const std::function<absl::Status(Module&)>& fn) {
  return model_->Apply(*module_, fn);
}

std::vector<Module::NamedModule> FullyShardedDataParallel::FsdpModules(bool root_only) const {
  std::vector<Module::NamedModule> modules;
  if (!below_plain_) modules.emplace_back("", module_.get());
  for (const auto& unit : model_->units().units()) {
    if (unit->dtype_group_of.has_value()) continue;
    if (unit->module == module_.get() || (root_only && !CheckIsRoot(*unit->module))) continue;
    modules.emplace_back(unit->name, unit->module);
  }
  return modules;
}

bool FullyShardedDataParallel::CheckIsRoot(const Module& module) const {
  if (!below_plain_) return &module == module_.get();
  const int unit = model_->units().IndexOf(module);
  return unit >= 0 && model_->units().unit(unit).settings.is_root;
}

void FullyShardedDataParallel::set_requires_gradient_sync(bool sync) { model_->executor().set_sync(sync); }

bool FullyShardedDataParallel::requires_gradient_sync() const { return model_->executor().sync(); }

absl::Status FullyShardedDataParallel::RegisterCommHook(CommHook hook) {
  return model_->runtime().gradients().SetCommHook(std::move(hook));
}

const MemoryPlan& FullyShardedDataParallel::memory_plan() const { return model_->runtime().plan(); }

Schedule FullyShardedDataParallel::StepSchedule(int micro_steps) const { return model_->StepSchedule(micro_steps); }

std::vector<std::string> FullyShardedDataParallel::UnitNames() const { return model_->UnitNames(); }

std::vector<FlatUnitLayout> FullyShardedDataParallel::UnitLayouts() const {
  return EmptyStateDict(model_->units()).units;
}

Stream& FullyShardedDataParallel::stream() const { return model_->stream(); }

NoSyncGuard::NoSyncGuard(FullyShardedDataParallel& model) : model_(model), before_(model.requires_gradient_sync()) {
  model_.set_requires_gradient_sync(false);
}

NoSyncGuard::~NoSyncGuard() { model_.set_requires_gradient_sync(before_); }

StateDictTypeGuard::StateDictTypeGuard(FullyShardedDataParallel& model, const StateDictSettings& settings)
    : model_(model), before_(model.set_state_dict_settings(settings)) {}

StateDictTypeGuard::~StateDictTypeGuard() { model_.set_state_dict_settings(before_); }

}  // namespace fsdp
