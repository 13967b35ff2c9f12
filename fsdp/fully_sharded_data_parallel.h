// SPDX-License-Identifier: Apache-2.0
//
// FullyShardedDataParallel: a module whose parameters, gradients and optimizer state are spread over the ranks of a
// group. Each rank feeds its own rows; gradients are means over ranks. Training reads like single-process training:
//
//   ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(gpt2), group, {
//       .auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>()}));
//   AdamW optimizer(model->parameters(), {.lr = 3e-4});
//   for (...) {
//     Tape tape = model->NewTape();
//     CrossEntropyLoss loss;
//     ASSIGN_OR_RETURN(Tensor logits, model->Forward(tokens, tape));
//     ASSIGN_OR_RETURN(Tensor value, loss.Forward(logits, targets, tape));
//     ASSIGN_OR_RETURN(Tensor grad_logits, loss.Backward(1.0f, tape));
//     RETURN_IF_ERROR(model->Backward(grad_logits, tape).status());
//     RETURN_IF_ERROR(optimizer.Step(model->stream()));
//     optimizer.ZeroGrad();
//   }
//
// This class is a thin facade. flat_layout.h is the layout arithmetic, unit.h the memory of a unit, schedule.h the step
// as data, executor.h its execution, model_state.h and optim_state.h the state dicts. One thread per rank uses it;
// calls that say "collective" must be made by every rank of the group.
#ifndef FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_
#define FSDP_FSDP_FULLY_SHARDED_DATA_PARALLEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/options.h"
#include "fsdp/schedule.h"
#include "fsdp/shard_groups.h"
#include "fsdp/state_dict_config.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor/state_dict.h"

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

  // Scales all gradients so that their norm over all ranks is at most `max_norm` (0: leaves them), and returns the norm
  // before: p = 2. Between backward and step. Collective; blocks.
  absl::StatusOr<float> ClipGradNorm(float max_norm);

  // The model's state in the form that the settings say (default: FULL on every rank), in the original dtype. Detached
  // copies. Collective; blocks.
  absl::StatusOr<StateDict> GetStateDict();

  // Adds the state of `optimizer`, made over parameters(), to `state`: tensors, "step" scalars and param_groups.
  // Collective.
  absl::Status AddOptimStateDict(Optimizer& optimizer, StateDict& state);

  // The inverses, for a state dict of the settings' type: FULL wants whole tensors on every rank, SHARDED each rank's
  // chunks. Missing, unexpected or misshapen entries are kInvalidArgument with clean names. Collective; blocks.
  absl::Status LoadStateDict(const StateDict& state);
  absl::Status LoadOptimStateDict(const StateDict& state, Optimizer& optimizer);

  // Restores from anything that can fill intervals, with no communication: calls `load` with a state dict whose tensors
  // are this rank's live shards, of the model and of `optimizer` (null: the model only), for it to fill in place.
  //   model->Restore(&optimizer, [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); });
  // Hyperparameters stay as the optimizer has them. Blocks.
  absl::Status Restore(Optimizer* optimizer, const std::function<absl::Status(StateDict& wanted)>& load);

  const StateDictSettings& state_dict_settings() const { return settings_; }
  void set_state_dict_settings(const StateDictSettings& settings) { settings_ = settings; }

  // Off: backward accumulates unsharded gradients without communication. See NoSyncGuard.
  void set_requires_gradient_sync(bool sync);
  bool requires_gradient_sync() const;

  // The order of work of one step of `micro_steps`, after the first step; and the names it uses.
  Schedule StepSchedule(int micro_steps) const;
  std::vector<std::string> UnitNames() const;  // "root", "transformer.h.0", ...

  // Flat layouts by unit, as state dicts carry them.
  std::vector<FlatUnitLayout> UnitLayouts() const;

  Module& module() const { return *module_; }

  // All ranks; where only a shard and a replicate group were given, the shard group.
  ProcessGroup& group() const;
  Device& device() const;

  // The stream of forward, backward and the optimizer.
  Stream& stream() const;

 private:
  FullyShardedDataParallel();

  std::unique_ptr<Module> module_;
  std::shared_ptr<const LayerOps> layer_ops_;
  std::unique_ptr<UnitStore> units_;
  std::unique_ptr<Executor> executor_;  // refers to module_ and units_
  StateDictSettings settings_{FullStateDictConfig{}, FullOptimStateDictConfig{}};
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

// While it lives, state dicts have this form; the config's type is the StateDictType.
class StateDictTypeGuard final {
 public:
  StateDictTypeGuard(FullyShardedDataParallel& model, const StateDictConfig& config);
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
