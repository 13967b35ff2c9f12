// SPDX-License-Identifier: Apache-2.0
//
// ModelOperations: the calls of a program on a sharded model between steps: gradients, state dicts, restoring.
// FullyShardedDataParallel, FsdpModule and ManualUnits all have them. "The settings" below are the StateDictSettings of
// FullyShardedDataParallel and of ManualUnits. A FsdpModule does not have settings: its state dicts are SHARDED, and a
// state dict to load has the form of its type.
//
// All return kFailedPrecondition within a step: within a forward or backward and, for ManualUnits, also if a call is
// missing, which they name. On a FsdpModule they are for the root; the first makes the model (see fsdp_module.h). One
// thread for each rank; calls marked "collective" must be made by every rank.
#ifndef FSDP_FSDP_MODEL_OPERATIONS_H_
#define FSDP_FSDP_MODEL_OPERATIONS_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/grad_clip.h"
#include "fsdp/fsdp/options/restore_options.h"
#include "fsdp/fsdp/options/state_dict_config.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class ShardedModel;

// Some tensors of a FULL state, whole and in host memory, which is reused when the call returns.
using FullStatePart = std::function<absl::Status(const StateDict& part)>;

class ModelOperations {
 public:
  // Fills the tensors of `wanted`, which alias this rank's shards.
  using FillState = std::function<absl::Status(StateDict& wanted)>;

  // Scales all gradients so that their p-norm over all ranks is at most `max_norm`, and returns the norm that they had.
  // As torch.nn.utils.clip_grad_norm_, it multiplies every gradient by min(1, max_norm / (norm + 1e-6)): a max_norm of
  // 0 and an infinite norm make them 0 (infinite ones become NaN), a norm of NaN makes all of them NaN. An infinite
  // max_norm clips nothing, unless the norm is infinite too: then all become NaN. `norm_type` is p, positive or
  // infinite. kInvalidArgument for other values, a negative max_norm and NaN. Collective; blocks.
  absl::StatusOr<float> ClipGradNorm(float max_norm, double norm_type = 2);

  // As ClipGradNorm(max_norm, 2), but does not block: returns the coefficient on the device for
  // Optimizer::set_grad_factor (grad_clip.h). If some gradient is one that the optimizer does not own or that is in
  // host memory, all gradients are scaled here as ClipGradNorm does, which blocks, and the result has no coefficient.
  // Collective.
  absl::StatusOr<GradClip> ClipGradNormAsync(float max_norm);

  // A copy of the whole gradient of one parameter, by any of its names, on the model's device; undefined, as PyTorch's
  // grad is None, if no rank has one. A rank without one, if others have it, counts as zero. Communicates for the whole
  // unit of the parameter, whose memory it needs a second time meanwhile. kNotFound for a name that no unit has;
  // kFailedPrecondition for a unit that is frozen whole. Collective; blocks.
  absl::StatusOr<Tensor> GetFullGradient(std::string_view parameter);

  // The model's state in the form of the settings (default: FULL on every rank). Parameters have the original dtype;
  // FULL and SHARDED copy them, LOCAL aliases this rank's slices. Buffers and ignored parameters are included whole,
  // and alias the model's. `options` may leave parameters out. kInvalidArgument for LOCAL of a model made with a mesh.
  // Collective, except LOCAL; blocks.
  //
  // Without settings: this rank's rows of every parameter, which alias the model's memory (except for models with
  // tensor parallelism or with parameters that are cut on another dimension than 0: for these the call is collective,
  // and the rows are copies). The next forward computes with values that are written to them before it; for later
  // writes see ShardedParameter::MarkChanged. Every rank must call it if units are unsharded, because these are
  // gathered again.
  absl::StatusOr<StateDict> GetStateDict(const StateDictOptions& options = {});

  // Adds the state of `optimizer`, which was made over parameters(), to `state`, in the form of the settings: tensors,
  // "step" scalars and param_groups, by names of parameters. The state of parameters that FSDP does not manage is
  // whole. Call it for each optimizer of a model that has several: kInvalidArgument names a parameter that another one
  // has too. kFailedPrecondition, naming the parameter, if ranks differ in its steps. Collective, except LOCAL; blocks.
  absl::Status AddOptimStateDict(Optimizer& optimizer, StateDict& state);

  // The inverses, for a state dict of the settings' type. FULL needs whole tensors on every rank, or only on rank 0
  // (see LoadStateDictOptions; for an optimizer also the config's rank0_only), SHARDED each rank's chunks, LOCAL its
  // slices. Parameters without an entry in an optimizer's state go back to never having stepped. kInvalidArgument,
  // before anything is changed, for an entry that is missing, unexpected or of a wrong shape, naming it; with
  // options.strict off, missing and unexpected names are returned instead. Each optimizer takes its part of a state
  // dict of several; in one that PyTorch made of several nothing says whose the other parts are, so for a strict load
  // they are unexpected. Collective, except LOCAL; blocks.
  absl::StatusOr<IncompatibleKeys> LoadStateDict(const StateDict& state);
  absl::StatusOr<IncompatibleKeys> LoadStateDict(const StateDict& state, const LoadStateDictOptions& options);
  absl::StatusOr<std::vector<std::string>> LoadOptimStateDict(const StateDict& state, Optimizer& optimizer);
  absl::StatusOr<std::vector<std::string>> LoadOptimStateDict(const StateDict& state, Optimizer& optimizer,
                                                              const LoadStateDictOptions& options);

  // Restores from any source that can fill intervals, without moving tensors between ranks: calls `load` with a state
  // dict whose tensors alias this rank's shards, of the model and of `optimizer` (null: only the model) or of several,
  // for `load` to fill.
  //   model->Restore(&optimizer, [&](StateDict& wanted) { return LoadCheckpoint(path, wanted, *group); });
  // The optimizer's hyperparameters stay. An error of any rank's `load` is returned on all. After kNotFound `load` is
  // called once more, without the "step" of optimizers that PyTorch saves without it (SGD, Lion, Muon). Collective;
  // blocks.
  //
  // With `options`: compares the attributes that they register, which names and shapes do not show, with the attributes
  // of the state that is loaded. Returns all that differ or were not recorded. kFailedPrecondition, on every rank,
  // names each required attribute that has another value, with both: before `load` is called if options.saved is given,
  // else after it, with the model's values as they were loaded.
  //   FSDP_ASSIGN_OR_RETURN(const StateDict saved, DescribeCheckpoint(path));
  //   model->Restore(&optimizer, load, {.saved = saved.attributes, .required = {{"model.n_head", 12}}});
  absl::StatusOr<std::vector<AttributeDifference>> Restore(Optimizer* optimizer, const FillState& load);
  absl::StatusOr<std::vector<AttributeDifference>> Restore(Optimizer* optimizer, const FillState& load,
                                                           const RestoreOptions& options);
  absl::StatusOr<std::vector<AttributeDifference>> Restore(absl::Span<Optimizer* const> optimizers,
                                                           const FillState& load, const RestoreOptions& options = {});

  // A FULL state without the full model: rank 0 gets whole tensors of model and `optimizer` (null: only the model), or
  // several, unit by unit and keeps no tensor, so that its extra memory is at most two units in the original dtype. For
  // writers that plan a file from names and shapes, and then fill it. DescribeFullState: names, dtypes, shapes and
  // texts of that state, without elements; local, also within a step. StreamFullState: calls `visit`, only on rank 0,
  // with every tensor, several at a time. After the first error `visit` is not called again, but the units are still
  // gathered, since the other ranks wait for that; then every rank gets the error. Collective; blocks.
  //   FSDP_ASSIGN_OR_RETURN(const StateDict contents, model->DescribeFullState(&optimizer));
  //   FSDP_RETURN_IF_ERROR(model->StreamFullState(&optimizer, [&](const StateDict& part) { return Write(part); }));
  absl::StatusOr<StateDict> DescribeFullState(Optimizer* optimizer);
  absl::StatusOr<StateDict> DescribeFullState(absl::Span<Optimizer* const> optimizers);
  absl::Status StreamFullState(Optimizer* optimizer, const FullStatePart& visit);
  absl::Status StreamFullState(absl::Span<Optimizer* const> optimizers, const FullStatePart& visit);

 protected:
  // nullopt: no settings.
  explicit ModelOperations(std::optional<StateDictSettings> settings) : settings_(std::move(settings)) {}
  ~ModelOperations() = default;
  ModelOperations(const ModelOperations&) = delete;
  ModelOperations& operator=(const ModelOperations&) = delete;

  // The model, made now if this is its first use, when nothing is on its streams. kFailedPrecondition, naming `call`,
  // within a step.
  absl::StatusOr<ShardedModel*> IdleModel(std::string_view call);

  // As AddOptimStateDict, in the form of `config`. `state` is empty or of the same type, else kInvalidArgument.
  absl::Status AddOptimStateDictAs(const OptimStateDictConfig& config, Optimizer& optimizer, StateDict& state);

  std::optional<StateDictSettings> settings_;

 private:
  // The model, made now if this is its first use.
  virtual absl::StatusOr<ShardedModel*> Model() = 0;

  StateDictType TypeOf(const StateDict& state, const LoadStateDictOptions& options) const;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_MODEL_OPERATIONS_H_
