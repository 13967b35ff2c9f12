// SPDX-License-Identifier: Apache-2.0
//
// ManualUnits: sharding for programs whose layers are not nn::Modules: another framework, or kernels of one's own. A
// unit is a list of named shapes; the program says itself when it computes with it, by four calls on plain buffers.
//
//   for (int u : {0, 1}) {                               // forward
//     FSDP_ASSIGN_OR_RETURN(weights, units->Unshard(u));      // tensors of the shapes that were given
//     ... compute ...
//     units->Reshard(u);
//   }
//   for (int u : {1, 0}) {                               // backward
//     FSDP_ASSIGN_OR_RETURN(weights, units->Unshard(u));
//     FSDP_ASSIGN_OR_RETURN(grads, units->Gradients(u));      // zeroed; add to them
//     ... compute ...
//     units->Reshard(u);
//     FSDP_RETURN_IF_ERROR(units->Reduce(u));
//   }
//   units->FinishBackward();
//   FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
//   units->FinishStep();
//
// All work is put on stream() or ordered with it, so compute belongs there. examples/two_layer_network.cc is whole.
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

  // Of `options` those fields count that say where and how parameters are kept: sharding_strategy, mixed_precision's
  // dtypes, use_orig_params, cpu_offload, init_seed. At most `units_at_once` are unsharded at one time. Collective.
  static absl::StatusOr<std::unique_ptr<ManualUnits>> Create(ShardGroups groups, const std::vector<UnitSpec>& units,
                                                             int units_at_once, const FsdpOptions& options = {});
  ~ManualUnits();

  // The whole parameters of a unit, in the order of its spec, in the compute dtype. Collective, the first time since
  // Reshard.
  absl::StatusOr<std::vector<Tensor>> Unshard(int unit);

  // Starts Unshard without waiting for it, so that it runs beside compute. Collective.
  absl::Status Prefetch(int unit);

  // Where backward adds the unit's gradients: zeroed when it is called first since Reduce.
  absl::StatusOr<std::vector<Tensor>> Gradients(int unit);

  // Gives the unit's memory back once the work put on stream() so far is done; its tensors must not be used after.
  void Reshard(int unit);

  // Averages the unit's gradients over the ranks into parameters()' gradients. Collective.
  absl::Status Reduce(int unit);

  // Makes stream() wait for the reductions issued so far: the optimizer may step.
  void FinishBackward();

  // Makes later all-gathers wait for what stream() has now: the optimizer's step.
  void FinishStep();

  // What an optimizer is made of: this rank's slices.
  std::vector<ShardedParameter*> parameters() const;
  Stream& stream() const;

 private:
  ManualUnits();

  std::unique_ptr<UnitStore> units_;
  std::unique_ptr<UnitRuntime> runtime_;  // refers to units_
};

}  // namespace fsdp

#endif  // FSDP_FSDP_MANUAL_UNITS_H_
