// SPDX-License-Identifier: Apache-2.0
//
// The parts under FullyShardedDataParallel without the two that need Modules: the program's calls take the place of the
// hooks, so there is no Executor, and units are lists of shapes, so there is no walk of a module tree. No order is
// known beforehand; therefore the program specifies the number of slots, and no unit is the root: all share the slots.
//
// A forgotten call is found by its traces: units between Gradients and Reduce, reductions without a later
// FinishBackward, and shards of another version than at the end of the last step, which an optimizer's step makes.
#include "fsdp/fsdp/manual_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/step_gate.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_runtime.h"
#include "fsdp/nn/module.h"

namespace fsdp {
namespace {

Partition PartitionOf(const std::vector<ManualUnits::UnitSpec>& specs) {
  Partition partition;
  for (const ManualUnits::UnitSpec& spec : specs) {
    UnitModule unit;
    unit.name = spec.name;
    for (const ManualUnits::ParameterSpec& of : spec.parameters) {
      auto parameter = std::make_shared<Parameter>();
      parameter->fqn = of.name;
      parameter->shape = of.shape;
      parameter->initializer = of.initializer;
      parameter->requires_grad = of.requires_grad;
      unit.parameters.push_back(std::move(parameter));
    }
    partition.units.push_back(std::move(unit));
  }
  return partition;
}

absl::Status CheckNames(const std::vector<ManualUnits::UnitSpec>& specs) {
  std::set<std::string> units;
  std::map<std::string, std::string> unit_of;  // by parameter
  for (const ManualUnits::UnitSpec& spec : specs) {
    if (spec.name.empty() || spec.parameters.empty()) {
      return absl::InvalidArgumentError("unit \"" + spec.name + "\": expected a name and at least one parameter");
    }
    if (!units.insert(spec.name).second) {
      return absl::InvalidArgumentError("unit \"" + spec.name + "\" is listed twice: expected names of their own");
    }
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const std::string& name = spec.parameters[i].name;
      if (name.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("unit \"", spec.name, "\": parameter ", i, " has no name: expected one"));
      }
      const auto [known, is_new] = unit_of.emplace(name, spec.name);
      if (is_new) continue;
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", name, "\" of unit \"", spec.name,
                                                     "\" is one of unit \"", known->second,
                                                     "\" already: expected names of their own"));
    }
  }
  return absl::OkStatus();
}

// Refuses options that apply only to Modules: ManualUnits would ignore them.
absl::Status CheckOptionsAreRead(const FsdpOptions& options) {
  // An option does not record whether it was set, so it is compared with its default.
  const FsdpOptions defaults;
  const std::pair<const char*, bool> set[] = {
      {"auto_wrap_policy", static_cast<bool>(options.auto_wrap_policy)},
      {"ignored_modules", !options.ignored_modules.empty()},
      {"ignored_states", options.ignored_states.index() != 0},
      {"mixed_precision.buffer_dtype", options.mixed_precision.buffer_dtype.has_value()},
      {"mixed_precision.cast_forward_inputs", options.mixed_precision.cast_forward_inputs},
      {"full_precision_in_eval", options.full_precision_in_eval},
      {"activation_checkpointing", options.activation_checkpointing},
      {"check_execution_order", options.check_execution_order},
      {"param_init_fn", options.param_init_fn != nullptr},
      {"sync_module_states", options.sync_module_states},
      {"device_id", options.device_id.has_value()},
      {"backward_prefetch", options.backward_prefetch != defaults.backward_prefetch},
      {"forward_prefetch", options.forward_prefetch},
      {"symm_mem_for_comm", options.symm_mem_for_comm},
      {"limit_all_gathers", options.limit_all_gathers != defaults.limit_all_gathers},
      {"trace", options.trace != nullptr},
  };
  for (const auto& [name, is_set] : set) {
    if (!is_set) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is set, but ManualUnits has no modules and no schedule: expected its default"));
  }
  return absl::OkStatus();
}

// A flat parameter is trained or frozen as a whole.
absl::Status CheckFrozen(const std::vector<ManualUnits::UnitSpec>& specs, bool use_orig_params) {
  for (const ManualUnits::UnitSpec& spec : specs) {
    const auto trainable = std::count_if(spec.parameters.begin(), spec.parameters.end(),
                                         [](const auto& parameter) { return parameter.requires_grad; });
    if (use_orig_params || trainable == 0 || trainable == static_cast<int64_t>(spec.parameters.size())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("unit \"", spec.name, "\" has ", trainable, " of ", spec.parameters.size(),
                     " parameters with requires_grad: expected all or none; divide it or set use_orig_params"));
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(const std::vector<ManualUnits::UnitSpec>& specs, int units_at_once,
                            const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNames(specs));
  FSDP_RETURN_IF_ERROR(CheckFrozen(specs, options.use_orig_params));
  FSDP_RETURN_IF_ERROR(CheckAtLeast1("units_at_once", units_at_once));
  FSDP_RETURN_IF_ERROR(Validate(options));
  FSDP_RETURN_IF_ERROR(CheckShardGroupSizeIsUsed(options, IsHybrid(options.sharding_strategy)));
  return CheckOptionsAreRead(options);
}

absl::Status SteppedTooEarly() {
  return absl::FailedPreconditionError(
      "the optimizer's step came before FinishBackward, so it may have read gradients that were still being reduced: "
      "call FinishBackward first; load the state of an earlier step to go on");
}

// A model without own parameters and buffers.
class NoModules final : public Module {
 public:
  std::string_view type_name() const override { return "ManualUnits"; }
  bool has_forward() const override { return false; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor&, Tape&) override { return NoForward(); }
  absl::StatusOr<Tensor> DoBackward(const Tensor&, Tape&) override { return NoForward(); }

  static absl::Status NoForward() {
    return absl::FailedPreconditionError("units of ManualUnits have no forward: the program computes");
  }
};

}  // namespace

// The calls of the program since the last step was finished.
class ManualUnits::Progress final : public StepGate {
 public:
  // `model` must outlive it.
  void Watch(const ShardedModel& model) {
    model_ = &model;
    version_ = Version();
  }

  // Parameters that changed since the last step was finished were changed by an optimizer, or by the program: on
  // stream(), which no all-gather waits for before FinishStep.
  absl::Status CheckOrder(std::string_view call) const;

  // CheckOrder, and no gradient is between Gradients and FinishBackward.
  absl::Status CheckBetweenPasses(std::string_view call) const override;
  absl::Status CheckIdle(std::string_view call) override;

  // Allowed after a step that went wrong: the loaded values replace that step's.
  absl::Status CheckCanLoad(std::string_view call) override;
  void MarkShardsChanged(bool loaded) override;

  absl::Status FinishBackward();
  absl::Status FinishStep();

  bool sync = true;
  std::set<int> in_backward;  // units between Gradients and Reduce
  std::set<int> kept;         // units whose gradients stay on this rank for a later Reduce
  bool reducing = false;      // Reduce was called since FinishBackward

 private:
  int64_t Version() const;
  const std::string& NameOf(int index) const { return model_->units().unit(index).name; }

  const ShardedModel* model_ = nullptr;
  int64_t version_ = 0;  // Version() when the last step was finished or values were loaded
  absl::Status broken_;  // why no call can succeed until values are loaded
};

// Grows with every write that MarkChanged reports, so a changed sum means a changed shard.
int64_t ManualUnits::Progress::Version() const {
  int64_t version = 0;
  for (const auto& unit : model_->units().units()) version += unit->shard_version();
  return version;
}

absl::Status ManualUnits::Progress::CheckOrder(std::string_view call) const {
  FSDP_RETURN_IF_ERROR(broken_);
  if (Version() == version_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(call),
                   ": parameters have changed since the last step was finished, which an all-gather "
                   "would not wait for: call FinishStep after the optimizer's step"));
}

absl::Status ManualUnits::Progress::CheckBetweenPasses(std::string_view call) const {
  FSDP_RETURN_IF_ERROR(CheckOrder(call));
  std::string open;
  for (const int index : in_backward) absl::StrAppend(&open, open.empty() ? "" : ", ", NameOf(index));
  if (!open.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(std::string(call),
                                                      ": Gradients was called, and Reduce was not, "
                                                      "for unit ",
                                                      open, ": reduce it first"));
  }
  if (!reducing) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(call), ": gradients are being reduced: call FinishBackward first"));
}

absl::Status ManualUnits::Progress::CheckIdle(std::string_view call) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses(call));
  return model_->runtime().Synchronize();
}

absl::Status ManualUnits::Progress::CheckCanLoad(std::string_view call) {
  // After a broken step only the streams must be idle: loading replaces everything that the step has left.
  return broken_.ok() ? CheckIdle(call) : model_->runtime().Synchronize();
}

void ManualUnits::Progress::MarkShardsChanged(bool loaded) {
  // A change by one of the calls between steps, and not by an optimizer: no all-gather is ahead of it.
  version_ = Version();
  if (!loaded || broken_.ok()) return;
  model_->runtime().gradients().Discard();
  in_backward.clear();
  kept.clear();
  broken_ = absl::OkStatus();
}

absl::Status ManualUnits::Progress::FinishBackward() {
  // Shards that changed during the reductions: an optimizer has read gradients too early.
  const bool stepped = reducing && Version() != version_;
  reducing = false;
  if (stepped && broken_.ok()) broken_ = SteppedTooEarly();
  FSDP_RETURN_IF_ERROR(broken_);
  return CheckBetweenPasses("FinishBackward");
}

absl::Status ManualUnits::Progress::FinishStep() {
  if (std::exchange(reducing, false) && broken_.ok()) broken_ = SteppedTooEarly();
  FSDP_RETURN_IF_ERROR(broken_);
  // An empty event: all-gathers wait for all compute so far, which includes the optimizer's step.
  model_->runtime().WaitForOptimizer(Event());
  const bool stepped = std::exchange(version_, Version()) != version_;
  if (stepped && !kept.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("FinishStep: the optimizer stepped without the gradients of unit ", NameOf(*kept.begin()),
                     ", which only this rank has: turn requires_gradient_sync on for the last micro-step"));
  }
  return CheckBetweenPasses("FinishStep");
}

ManualUnits::ManualUnits()
    : ModelOperations(StateDictSettings()),
      no_modules_(std::make_unique<NoModules>()),
      progress_(std::make_unique<Progress>()) {}

ManualUnits::~ManualUnits() = default;

absl::StatusOr<std::unique_ptr<ManualUnits>> ManualUnits::Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                                 int units_at_once, const FsdpOptions& options) {
  // Before AllReduceStatus, which needs the groups.
  FSDP_RETURN_IF_ERROR(groups.Validate());
  FSDP_RETURN_IF_ERROR(groups.AllReduceStatus(CheckArguments(units, units_at_once, options)));
  if (options.shard_group_size.has_value()) {
    FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(*options.shard_group_size));
  } else if (IsHybrid(options.sharding_strategy) && groups.is_one_group()) {
    FSDP_RETURN_IF_ERROR(groups.SplitByHosts());
  }
  std::unique_ptr<ManualUnits> made(new ManualUnits());
  const ModelSettings settings{std::vector<UnitSettings>(units.size(), UnitSettingsOf(options, {}, /*is_root=*/false))};
  FSDP_ASSIGN_OR_RETURN(
      std::unique_ptr<UnitStore> store,
      UnitStore::Create(PartitionOf(units), settings, std::move(groups), ParameterInit{.seed = options.init_seed}));
  // One gradient slot more, so that a unit's reduction overlaps the backward of the next.
  const SlotCounts slots{.unsharded = units_at_once, .gradients = units_at_once + 1};
  FSDP_ASSIGN_OR_RETURN(made->model_,
                        ShardedModel::CreateManual(*made->no_modules_, std::move(store), slots, *made->progress_));
  made->progress_->Watch(*made->model_);
  return made;
}

absl::StatusOr<ShardedModel*> ManualUnits::Model() { return model_.get(); }

absl::Status ManualUnits::CheckIndex(int index) const {
  const int size = model_->units().size();
  if (index >= 0 && index < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unit ", index, ": expected an index below ", size, ", the number of units"));
}

absl::Status ManualUnits::Prefetch(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  FSDP_RETURN_IF_ERROR(progress_->CheckOrder("Unshard"));
  UnitRuntime& runtime = model_->runtime();
  // A copy from before the optimizer's step must not be computed with.
  if (runtime.is_stale(index)) runtime.Reshard(index);
  return runtime.Unshard(index);
}

absl::StatusOr<std::vector<Tensor>> ManualUnits::Unshard(int index) {
  FSDP_RETURN_IF_ERROR(Prefetch(index));
  FSDP_RETURN_IF_ERROR(model_->runtime().BindParameters(index));
  std::vector<Tensor> whole;
  for (const auto& parameter : model_->units().unit(index).parameters) whole.push_back(parameter->data);
  return whole;
}

absl::StatusOr<std::vector<Tensor>> ManualUnits::Gradients(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  FSDP_RETURN_IF_ERROR(progress_->CheckOrder("Gradients"));
  FSDP_RETURN_IF_ERROR(model_->runtime().gradients().Bind(index, GradientReduction::SyncIf(progress_->sync)));
  model_->runtime().gradients().ZeroUnwritten(index);
  // Reduce does not follow for a frozen unit, which has no gradient.
  if (model_->units().unit(index).trainable()) progress_->in_backward.insert(index);
  std::vector<Tensor> whole;
  for (const auto& parameter : model_->units().unit(index).parameters) whole.push_back(parameter->grad);
  return whole;
}

absl::Status ManualUnits::Reshard(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  model_->runtime().Reshard(index);
  return absl::OkStatus();
}

absl::Status ManualUnits::Reduce(int index) {
  FSDP_RETURN_IF_ERROR(CheckIndex(index));
  FSDP_RETURN_IF_ERROR(progress_->CheckOrder("Reduce"));
  const Unit& unit = model_->units().unit(index);
  if (!unit.trainable()) return absl::OkStatus();
  if (progress_->in_backward.erase(index) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit.display_name(), ": no gradient to reduce: call Gradients before Reduce"));
  }
  GradientReduction& gradients = model_->runtime().gradients();
  // With the sync that Bind had: set_requires_gradient_sync refuses a change in between.
  gradients.Unbind(index, GradientReduction::SyncIf(progress_->sync));
  if (!progress_->sync) {
    progress_->kept.insert(index);
    return absl::OkStatus();
  }
  progress_->kept.erase(index);
  progress_->reducing = true;
  if (!unit.sharded() && unit.groups.replicate == nullptr) return gradients.StoreLocal(index);
  if (unit.sharded()) FSDP_RETURN_IF_ERROR(gradients.ReduceScatter(index));
  // A hybrid unit has both collectives, the shard group's first, as in gradient_reduction.cc.
  if (unit.groups.replicate != nullptr) FSDP_RETURN_IF_ERROR(gradients.AllReduce(index));
  return absl::OkStatus();
}

absl::Status ManualUnits::set_requires_gradient_sync(bool sync) {
  if (!progress_->in_backward.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("set_requires_gradient_sync: unit ", model_->units().unit(*progress_->in_backward.begin()).name,
                     " is between Gradients and Reduce: expected a call before the backward of a micro-step"));
  }
  progress_->sync = sync;
  return absl::OkStatus();
}

bool ManualUnits::requires_gradient_sync() const { return progress_->sync; }

absl::Status ManualUnits::FinishBackward() {
  // Before the check, so that even after an error the reductions are ordered before the program's next work.
  model_->runtime().gradients().WaitForReductions();
  return progress_->FinishBackward();
}

absl::Status ManualUnits::FinishStep() {
  model_->runtime().gradients().WaitForReductions();
  return progress_->FinishStep();
}

std::vector<ShardedParameter*> ManualUnits::parameters() const { return model_->parameters(); }

Stream& ManualUnits::stream() const { return model_->stream(); }

}  // namespace fsdp
