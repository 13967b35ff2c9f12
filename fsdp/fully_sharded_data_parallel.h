// SPDX-License-Identifier: Apache-2.0
//
// FullyShardedDataParallel: a module whose parameters, gradients and optimizer state are spread over the ranks of a
// group. Each rank feeds its own rows; gradients are means over ranks. Training reads like single-process training:
//
//   FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(gpt2), group, {
//       .auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>()}));
//   AdamW optimizer(model->parameters(), {.lr = 3e-4});
//   for (...) {
//     Tape tape = model->NewTape();
//     CrossEntropyLoss loss;
//     FSDP_ASSIGN_OR_RETURN(Tensor logits, model->Forward(tokens, tape));
//     FSDP_ASSIGN_OR_RETURN(Tensor value, loss.Forward(logits, targets, tape));
//     FSDP_ASSIGN_OR_RETURN(Tensor grad_logits, loss.Backward(1.0f, tape));
//     FSDP_RETURN_IF_ERROR(model->Backward(grad_logits, tape).status());
//     FSDP_RETURN_IF_ERROR(optimizer.Step(model->stream()));
//     optimizer.ZeroGrad();
//   }
//
// ModelOperations has its calls between steps (clipping, state dicts, Restore). This class is a thin facade of
// sharded_model.h: units/shard_layout.h is the layout arithmetic, units/unit.h the memory of a unit,
// schedule/schedule.h the step as data, units/executor.h its execution, state/model_state.h and state/optim_state.h the
// state dicts. One thread per rank uses it; calls marked "collective" must be made by every rank of the group.
#ifndef FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_
#define FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/model_operations.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/options/state_dict_config.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/fsdp/state/optim_state_key.h"
#include "fsdp/fsdp/summon_full_params.h"
#include "fsdp/fsdp/units/comm_hook.h"
#include "fsdp/fsdp/units/memory_plan.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class ShardedModel;
struct Partition;

class FullyShardedDataParallel final : public ModelOperations {
 public:
  // Takes over `module`, the root: names its parameters, cuts it into units by options.auto_wrap_policy or at the
  // modules that WrapModule marked (wrap/manual_wrap.h), gives each rank an equal shard of each unit's flat parameter
  // and allocates all memory that training will need. Parameters without memory are initialised from their
  // Initializers, equal on any number of ranks; others keep their values. `groups` is one group of ranks, a pair of
  // groups, or a mesh: see ShardGroups. kInvalidArgument, naming the parameters, for several dtypes in one unit and for
  // anything that Partition::ByPolicy refuses; kFailedPrecondition if ranks wrap different models. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Wrap(std::unique_ptr<Module> module,
                                                                        ShardGroups groups,
                                                                        const FsdpOptions& options = {});

  // For several FSDP roots below a plain module (PyTorch's FSDP instances in a module that is not one): takes over
  // `module`, which does not become a unit. Each outermost module that WrapModule marked is a root, with the units
  // marked below it, and has `options` with its own overrides; all other parameters stay as they are, like ignored
  // ones: the program gives them memory and reduces their gradients, or marks their module with kNoShard. Forward runs
  // `module`, and the calls below are for all of it. Errors as Wrap's; kInvalidArgument if nothing is marked.
  // Collective; blocks.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> WrapRootsBelow(std::unique_ptr<Module> module,
                                                                                  ShardGroups groups,
                                                                                  const FsdpOptions& options = {});

  // For programs that treat both APIs alike: takes over a module that FullyShard was applied to (FSDP2). If this is the
  // module's first use, it gets names, shards and values now. kInvalidArgument if FullyShard was not applied.
  // Collective.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FromFullyShard(std::unique_ptr<Module> module);

  ~FullyShardedDataParallel();

  // A tape on this model's stream. With `training` off, forward keeps nothing for a backward.
  Tape NewTape(bool training = true) const;

  // Module::Forward and Module::Backward of the root. They issue work and do not wait for the device. Inputs in host
  // memory are copied to the group's device. kFailedPrecondition for a tape that NewTape did not make and while a
  // SummonFullParamsGuard lives. After a pass that failed, the calls between passes are refused until the next Forward.
  // If the failed pass was a backward, that Forward discards all gradients, as ZeroGrad does, and adds a warning to
  // warnings(). Collective.
  absl::StatusOr<Tensor> Forward(const Tensor& input, Tape& tape);
  absl::StatusOr<TensorList> Forward(TensorList inputs, Tape& tape);
  absl::StatusOr<Tensor> Backward(const Tensor& grad_output, Tape& tape);
  absl::StatusOr<TensorList> Backward(TensorList grad_outputs, Tape& tape);

  // Messages for people about legal but surprising properties of the wrapping and of the order of units; PyTorch prints
  // them.
  const std::vector<std::string>& warnings() const;

  // This rank's slice of each original parameter, shared ones once, in the order of units, for an optimizer. They live
  // as long as the model.
  std::vector<ShardedParameter*> parameters() const;

  // The calls of ModelOperations that return mismatches or differences, without options: any mismatch is then an error,
  // and there is nothing to return.
  using ModelOperations::LoadOptimStateDict;
  using ModelOperations::LoadStateDict;
  using ModelOperations::Restore;
  absl::Status LoadStateDict(const StateDict& state) { return LoadStateDict(state, LoadStateDictOptions{}).status(); }
  absl::Status LoadOptimStateDict(const StateDict& state, Optimizer& optimizer) {
    return LoadOptimStateDict(state, optimizer, LoadStateDictOptions{}).status();
  }
  absl::Status Restore(Optimizer* optimizer, const FillState& load) {
    return Restore(optimizer, load, RestoreOptions{}).status();
  }

  // This rank's slices of an optimizer's state dict of the settings' type, in newly allocated memory, as a LOCAL state
  // dict, which LoadOptimStateDict loads under LOCAL settings. kInvalidArgument for a state dict that is not keyed by
  // parameter names (state/optim_state_key.h converts it). Collective; blocks. optim_forms.h has PyTorch's older forms
  // of this call.
  absl::StatusOr<StateDict> OptimStateDictToLoad(const StateDict& state, const Optimizer& optimizer);

  const StateDictSettings& state_dict_settings() const { return *settings_; }

  // Returns the settings that were set before.
  StateDictSettings set_state_dict_settings(const StateDictSettings& settings) {
    return *std::exchange(settings_, settings);
  }

  // Binds whole parameters, while the guard lives, for the units of `module` and below; `module` is part of this model
  // (null: the root). kFailedPrecondition within a forward or backward. Collective; blocks.
  absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> SummonFullParams(const SummonFullParamsOptions& options = {},
                                                                          Module* module = nullptr);

  // Calls `fn` for every module, children first, while the parameters of the units around it are whole. Values that
  // `fn` writes are kept. Collective; blocks.
  absl::Status Apply(const std::function<absl::Status(Module&)>& fn);

  // The modules that are units, with names, parents first. The root ("") always is one; with `root_only` it is the only
  // one. After WrapRootsBelow the plain module is not listed, and there may be several roots.
  std::vector<Module::NamedModule> FsdpModules(bool root_only = false) const;

  // True for the module that was wrapped; after WrapRootsBelow, for each root.
  bool CheckIsRoot(const Module& module) const;

  // Off: backward accumulates unsharded gradients without communication. See NoSyncGuard.
  void set_requires_gradient_sync(bool sync);
  bool requires_gradient_sync() const;

  // Reduces the gradients of every unit by `hook` instead of the default reduction. Call once, before the first
  // backward. kFailedPrecondition if there is a hook already, if a unit is hybrid, or after a backward.
  absl::Status RegisterCommHook(CommHook hook);

  // The memory that this rank holds for sharding, as predicted before it was allocated. Without activations and
  // optimizer state.
  const MemoryPlan& memory_plan() const;

  // The schedule of one step of `micro_steps` micro-steps, by the order in which units ran last, and the names it uses.
  Schedule StepSchedule(int micro_steps) const;
  // "root", "transformer.h.0", ...: by index in schedules, units first, then modules without parameters that recompute.
  std::vector<std::string> UnitNames() const;

  // Flat layouts by unit, as state dicts carry them.
  std::vector<FlatUnitLayout> UnitLayouts() const;

  Module& module() const { return *module_; }

  // The group of all ranks; the shard group if only a pair of shard and replicate group was given.
  ProcessGroup& group() const;
  Device& device() const;

  // The stream of forward, backward and the optimizer.
  Stream& stream() const;

 private:
  using CutModule = std::function<absl::StatusOr<Partition>(Module& root, const FsdpOptions& options)>;

  friend class ShardedModel;

  explicit FullyShardedDataParallel(std::unique_ptr<Module> module);
  absl::StatusOr<ShardedModel*> Model() override;
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> WrapBy(const CutModule& cut,
                                                                          std::unique_ptr<Module> module,
                                                                          ShardGroups groups,
                                                                          const FsdpOptions& options);

  std::unique_ptr<Module> module_;
  bool below_plain_ = false;             // module_ is no unit, and the roots are below it
  std::shared_ptr<ShardedModel> model_;  // refers to module_; with FullyShard also the root's
};

// While it lives, backward accumulates gradients without communication. For every micro-step of a step but the last.
class NoSyncGuard final {
 public:
  explicit NoSyncGuard(FullyShardedDataParallel& model);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  FullyShardedDataParallel& model_;
  const bool before_;
};

// While it lives, state dicts have the form of `settings`. The destructor restores the settings that were set before.
class StateDictTypeGuard final {
 public:
  StateDictTypeGuard(FullyShardedDataParallel& model, const StateDictSettings& settings);
  ~StateDictTypeGuard();
  StateDictTypeGuard(const StateDictTypeGuard&) = delete;
  StateDictTypeGuard& operator=(const StateDictTypeGuard&) = delete;

 private:
  FullyShardedDataParallel& model_;
  const StateDictSettings before_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_
