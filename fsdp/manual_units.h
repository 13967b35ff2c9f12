// SPDX-License-Identifier: Apache-2.0
//
// ManualUnits: sharding for programs whose layers are not Modules: another framework, or the program's own kernels. A
// unit is a list of named shapes. The program reports when it computes with a unit, by four calls on plain tensors, and
// the end of its step, by two. A call that is forgotten is an error of a later one, and never a race.
//
//   for (int u : {0, 1}) {                               // forward
//     FSDP_ASSIGN_OR_RETURN(weights, units->Unshard(u));      // tensors of the shapes that were given
//     ... compute ...
//     FSDP_RETURN_IF_ERROR(units->Reshard(u));
//   }
//   for (int u : {1, 0}) {                               // backward
//     FSDP_ASSIGN_OR_RETURN(weights, units->Unshard(u));
//     FSDP_ASSIGN_OR_RETURN(grads, units->Gradients(u));      // zeroed; add to them
//     ... compute ...
//     FSDP_RETURN_IF_ERROR(units->Reshard(u));
//     FSDP_RETURN_IF_ERROR(units->Reduce(u));
//   }
//   FSDP_RETURN_IF_ERROR(units->FinishBackward());
//   FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
//   optimizer.ZeroGrad();
//   FSDP_RETURN_IF_ERROR(units->FinishStep());
//
// Between steps, and between FinishBackward and the optimizer's step, it has the calls of ModelOperations, as
// FullyShardedDataParallel has: clipping, the three kinds of state dicts of model and optimizer, Restore. So
// checkpoint/ saves and loads it as any model.
//
// All work is put on stream() or ordered with it, so the program's compute belongs on stream(). One thread for each
// rank. examples/two_layer_network.cc is a whole program.
#ifndef FSDP_FSDP_MANUAL_UNITS_H_
#define FSDP_FSDP_MANUAL_UNITS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/model_operations.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/nn/initializer.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class Module;
class ShardedModel;

class ManualUnits final : public ModelOperations {
 public:
  struct ParameterSpec {
    std::string name;  // in state dicts
    Shape shape;
    Initializer initializer = {};
    bool requires_grad = true;  // false: frozen
  };
  struct UnitSpec {
    std::string name;
    std::vector<ParameterSpec> parameters;
  };

  // Reads the fields of `options` about how parameters are kept: sharding_strategy, shard_group_size, the dtypes of
  // mixed_precision, use_orig_params, cpu_offload, optimizer_casts, init_seed. At most `units_at_once` units may be
  // unsharded at the same time; Unshard of one more is kFailedPrecondition. kInvalidArgument, naming it, for a unit
  // without parameters, names that are empty or used twice, and other fields of `options` that are set. Collective;
  // blocks.
  static absl::StatusOr<std::unique_ptr<ManualUnits>> Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                             int units_at_once, const FsdpOptions& options = {});
  ~ManualUnits();

  // ---- Within a step. A unit is named by its index in `units`; another index is kInvalidArgument.

  // The whole parameters of a unit, in the order of its spec, in the compute dtype. Collective, the first time since
  // Reshard or since an optimizer's step. kFailedPrecondition after an optimizer's step without FinishStep.
  absl::StatusOr<std::vector<Tensor>> Unshard(int index);

  // Issues the all-gather of Unshard ahead, so that it overlaps with compute. Collective.
  absl::Status Prefetch(int index);

  // The tensors that backward adds the unit's gradients to, in the order of its spec; undefined for a unit that is
  // frozen whole. Zeroed by the first call after Reduce.
  absl::StatusOr<std::vector<Tensor>> Gradients(int index);

  // Gives the unit's memory back once the work put on stream() so far is done. The tensors of Unshard must not be used
  // in work that is issued later.
  absl::Status Reshard(int index);

  // Averages the unit's gradients over the ranks and adds them to parameters()' gradients. kFailedPrecondition without
  // Gradients before it. Collective, unless requires_gradient_sync() is off.
  absl::Status Reduce(int index);

  // Off: Reduce keeps the unit's gradients on this rank, without communication, for every micro-step of a step but the
  // last; the first Reduce with it on reduces their sum. On at first. kFailedPrecondition between Gradients and Reduce.
  // Call it on all ranks alike.
  absl::Status set_requires_gradient_sync(bool sync);
  bool requires_gradient_sync() const;

  // Ends a backward: makes stream() wait for the reductions issued so far, so that gradients can be read there.
  // kFailedPrecondition names the units that called Gradients and not Reduce.
  absl::Status FinishBackward();

  // Ends a step: makes later all-gathers wait for the work that is on stream(), the optimizer's step.
  // kFailedPrecondition if reductions were issued since FinishBackward: the optimizer may have read gradients that had
  // not arrived yet. From then on every call fails, until values are loaded. Also kFailedPrecondition if the step left
  // out gradients that Reduce has kept on this rank (set_requires_gradient_sync).
  absl::Status FinishStep();

  // This rank's slices of all parameters, for an optimizer. They live as long as this object.
  std::vector<ShardedParameter*> parameters() const;
  Stream& stream() const;

  // The form of state dicts (default: FULL on every rank). The setter returns the settings that were set before.
  const StateDictSettings& state_dict_settings() const { return *settings_; }
  StateDictSettings set_state_dict_settings(const StateDictSettings& settings) {
    return *std::exchange(settings_, settings);
  }

 private:
  class Progress;

  ManualUnits();

  absl::StatusOr<ShardedModel*> Model() override;
  absl::Status CheckIndex(int index) const;

  std::unique_ptr<Module> no_modules_;   // what functions on a model's buffers and ignored parameters are given
  std::unique_ptr<Progress> progress_;   // how far the program's step has got
  std::shared_ptr<ShardedModel> model_;  // refers to both
};

}  // namespace fsdp

#endif  // FSDP_FSDP_MANUAL_UNITS_H_
