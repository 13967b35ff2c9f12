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
// This class is a thin facade. units/shard_layout.h is the layout arithmetic, units/unit.h the memory of a unit,
// schedule/schedule.h the step as data, units/executor.h its execution, state/model_state.h and state/optim_state.h the
// state dicts. One thread per rank uses it; calls that say "collective" must be made by every rank of the group.
#ifndef FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_
#define FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/grad_clip.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/options/state_dict_config.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/state/full_state_stream.h"
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

class Executor;
class UnitStore;

class FullyShardedDataParallel final {
 public:
  // Takes over `module` (the root, parameters named): cuts it into units, gives each unit's flat parameter to the ranks
  // in equal shards and allocates all memory that training will need. Parameters without memory are initialised from
  // their Initializers, equal on any number of ranks; others keep their values. Collective. kInvalidArgument for
  // parameters of mixed dtypes in one unit or a parameter shared across units, by name.
  // `groups` is one group of ranks, a pair of them, or a mesh: see ShardGroups.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Wrap(std::unique_ptr<Module> module,
                                                                        ShardGroups groups,
                                                                        const FsdpOptions& options = {});

  // Takes over a module that FullyShard was applied to (FSDP2), which gets names, shards and values now if it has none
  // yet: for programs that treat both APIs alike. Collective. kInvalidArgument where it was not applied.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FromFullyShard(std::unique_ptr<Module> module);

  ~FullyShardedDataParallel();

  // A tape on this model's stream. Off `training`, forward keeps nothing for a backward.
  Tape NewTape(bool training = true) const;

  // As Module's; collective.
  absl::StatusOr<Tensor> Forward(const Tensor& input, Tape& tape);
  absl::StatusOr<Tensor> Backward(const Tensor& grad_output, Tape& tape);

  // What was legal but surprising in the wrapping; PyTorch prints it.
  const std::vector<std::string>& warnings() const;

  // One per original parameter, shared ones once, in unit order: what an optimizer is made of. They live as long as the
  // model.
  std::vector<ShardedParameter*> parameters() const;

  // Scales all gradients so that their p-norm over all ranks is at most `max_norm` (0: leaves them), and returns the
  // norm before; `norm_type` is p, positive or infinite. kFailedPrecondition within a forward or backward. Collective;
  // blocks.
  absl::StatusOr<float> ClipGradNorm(float max_norm, double norm_type = 2);

  // The same with the 2-norm for a step that reads it as its factor: see grad_clip.h. Scales only what that cannot
  // reach: gradients in host memory or of ignored parameters, beside which all are scaled here. Collective.
  absl::StatusOr<GradClip> DeferClipGradNorm(float max_norm);

  // The model's state in the form that the settings say (default: FULL on every rank): parameters in the original
  // dtype, FULL and SHARDED copied, LOCAL the live slices; buffers and ignored parameters beside them, whole and live.
  // kInvalidArgument for LOCAL of a model made with a mesh. Collective, but for LOCAL; blocks.
  absl::StatusOr<StateDict> GetStateDict();

  // Adds the state of `optimizer`, made over parameters(), to `state`: tensors, "step" scalars and param_groups.
  // Parameters that FSDP does not manage are there whole. kFailedPrecondition, by name, where ranks differ. Collective,
  // but for LOCAL.
  absl::Status AddOptimStateDict(Optimizer& optimizer, StateDict& state);

  // The inverses, for a state dict of the settings' type: FULL wants whole tensors on every rank (or on rank 0: see
  // LoadStateDictOptions; an optimizer's with the config's rank0_only), SHARDED each rank's chunks, LOCAL its slices.
  // Missing, unexpected or misshapen entries are kInvalidArgument with clean names, before anything is changed; not
  // strict, the names are returned. Collective, but for LOCAL; blocks.
  absl::Status LoadStateDict(const StateDict& state);
  absl::StatusOr<IncompatibleKeys> LoadStateDict(const StateDict& state, const LoadStateDictOptions& options);
  absl::Status LoadOptimStateDict(const StateDict& state, Optimizer& optimizer);
  absl::StatusOr<std::vector<std::string>> LoadOptimStateDict(const StateDict& state, Optimizer& optimizer,
                                                              const LoadStateDictOptions& options);

  // This rank's slices of an optimizer's state dict of the settings' type, in memory of their own, as a LOCAL state
  // dict: what LoadOptimStateDict loads under LOCAL settings. kInvalidArgument for a state dict that is not keyed by
  // parameter names (state/optim_state_key.h converts it). Collective; blocks. optim_forms.h has
  // PyTorch's older forms of this call.
  absl::StatusOr<StateDict> OptimStateDictToLoad(const StateDict& state, const Optimizer& optimizer);

  // Restores from anything that can fill intervals, with no communication: calls `load` with a state dict whose tensors
  // are this rank's live shards, of the model and of `optimizer` (null: the model only), for it to fill in place.
  //   model->Restore(&optimizer, [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); });
  // Hyperparameters stay as the optimizer has them. Blocks.
  absl::Status Restore(Optimizer* optimizer, const std::function<absl::Status(StateDict& wanted)>& load);

  // A FULL state of model and `optimizer` (null: the model only) without the full model: see full_state_stream.h.
  absl::StatusOr<StateDict> DescribeFullState(Optimizer* optimizer);
  absl::Status StreamFullState(Optimizer* optimizer, const FullStatePart& visit);

  // For StepGraph (step_graph.h). What is known to stand against capturing a step, by name, on every rank alike; and
  // what the host does at the beginning of a step, for one that is captured or replayed.
  absl::Status CheckCanCapture() const;
  absl::Status PrepareReplay();

  const StateDictSettings& state_dict_settings() const { return settings_; }

  // Returns those before.
  StateDictSettings set_state_dict_settings(const StateDictSettings& settings);

  // Whole parameters, while the guard lives, of the units of `module`, this model's or one below it (default: all).
  // kFailedPrecondition within a forward or backward. Collective; blocks.
  absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> SummonFullParams(const SummonFullParamsOptions& options = {},
                                                                          Module* module = nullptr);

  // Calls `fn` for every module, children first, while the parameters of the units that it lies in are whole; what it
  // writes stays. Collective; blocks.
  absl::Status Apply(const std::function<absl::Status(Module&)>& fn);

  // Modules that are units, parents first, by name; the root ("") always is one. `root_only`: just that.
  std::vector<Module::NamedModule> FsdpModules(bool root_only = false) const;

  // True for the module that was wrapped.
  bool CheckIsRoot(const Module& module) const { return &module == module_.get(); }

  // Off: backward accumulates unsharded gradients without communication. See NoSyncGuard.
  void set_requires_gradient_sync(bool sync);
  bool requires_gradient_sync() const;

  // Reduces gradients by `hook` instead of by default, of every unit. Before the first backward, once, and not where a
  // unit is hybrid: kFailedPrecondition.
  absl::Status RegisterCommHook(CommHook hook);

  // What this rank holds for sharding, predicted before it was allocated; activations and optimizer state beside it.
  const MemoryPlan& memory_plan() const;

  // The order of work of one step of `micro_steps`, after the first step; and the names it uses.
  Schedule StepSchedule(int micro_steps) const;
  std::vector<std::string> UnitNames() const;  // "root", "transformer.h.0", ...

  // Flat layouts by unit, as state dicts carry them.
  std::vector<FlatUnitLayout> UnitLayouts() const;

  Module& module() const { return *module_; }

  // For functions on the units of a model, as in optim_forms.h.
  const UnitStore& units() const { return *units_; }

  // All ranks; where only a shard and a replicate group were given, the shard group.
  ProcessGroup& group() const;
  Device& device() const;

  // The stream of forward, backward and the optimizer.
  Stream& stream() const;

 private:
  FullyShardedDataParallel();

  std::unique_ptr<Module> module_;
  std::shared_ptr<const LayerOps> layer_ops_;
  std::shared_ptr<UnitStore> units_;    // with FullyShard also the root's
  std::shared_ptr<Executor> executor_;  // likewise; refers to module_ and units_
  StateDictSettings settings_;
};

// While it lives, backward accumulates gradients locally: every micro-step but the last is made under one.
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

// While it lives, state dicts have this form; the config's type is the StateDictType. What was before comes back
// however the scope is left.
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
