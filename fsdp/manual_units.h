// SPDX-License-Identifier: Apache-2.0
//
// ManualUnits: sharding for programs whose layers are not Modules: another framework, or the program's own kernels. A
// unit is a list of named shapes. The program reports when it computes with a unit, by four calls on plain tensors, and
// where its step ends, by two. Without these two all-gathers would race with the optimizer. There is no state dict,
// clipping or accumulation without communication.
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
//   units->FinishBackward();
//   FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
//   units->FinishStep();
//
// All work is put on stream() or ordered with it, so the program's compute belongs on stream(). One thread for each
// rank. examples/two_layer_network.cc is a whole program.
#ifndef FSDP_FSDP_MANUAL_UNITS_H_
#define FSDP_FSDP_MANUAL_UNITS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/nn/initializer.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class UnitRuntime;
class UnitStore;

class ManualUnits final {
 public:
  struct ParameterSpec {
    std::string name;
    Shape shape;
    Initializer initializer = {};
  };
  struct UnitSpec {
    std::string name;
    std::vector<ParameterSpec> parameters;
  };

  // Reads the fields of `options` that say where and how parameters are kept: sharding_strategy, shard_group_size, the
  // dtypes of mixed_precision, use_orig_params, cpu_offload, optimizer_casts, init_seed. At most `units_at_once` units
  // may be unsharded at one time; Unshard of one more is kFailedPrecondition. kInvalidArgument, naming it, for a unit
  // without parameters, names that are empty or used twice, and other fields of `options` that are set. Collective;
  // blocks.
  static absl::StatusOr<std::unique_ptr<ManualUnits>> Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                             int units_at_once, const FsdpOptions& options = {});
  ~ManualUnits();

  // A unit is named by its index in `units`; another index is kInvalidArgument.

  // The whole parameters of a unit, in the order of its spec, in the compute dtype. Collective, the first time since
  // Reshard or since an optimizer's step.
  absl::StatusOr<std::vector<Tensor>> Unshard(int index);

  // Issues the all-gather of Unshard ahead, so that it overlaps with compute. Collective.
  absl::Status Prefetch(int index);

  // The tensors that backward adds the unit's gradients to, in the order of its spec. Zeroed by the first call after
  // Reduce.
  absl::StatusOr<std::vector<Tensor>> Gradients(int index);

  // Gives the unit's memory back once the work put on stream() so far is done. The tensors of Unshard must not be used
  // in work that is issued later.
  absl::Status Reshard(int index);

  // Averages the unit's gradients over the ranks into parameters()' gradients. Collective.
  absl::Status Reduce(int index);

  // Makes stream() wait for the reductions issued so far: the optimizer may step.
  void FinishBackward();

  // Makes later all-gathers wait for what stream() has now: the optimizer's step.
  void FinishStep();

  // This rank's slices of all parameters, for an optimizer. They live as long as this object.
  std::vector<ShardedParameter*> parameters() const;
  Stream& stream() const;

 private:
  ManualUnits();

  absl::Status CheckIndex(int index) const;

  std::unique_ptr<UnitStore> units_;
  std::unique_ptr<UnitRuntime> runtime_;  // refers to units_
};

}  // namespace fsdp

#endif  // FSDP_FSDP_MANUAL_UNITS_H_
