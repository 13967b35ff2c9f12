// SPDX-License-Identifier: Apache-2.0
//
// SummonFullParamsGuard: while it lives, whole parameters in their original dtype are bound to the modules, for a
// program that reads or edits a model between steps. PyTorch's summon_full_params.
//
//   {
//     FSDP_ASSIGN_OR_RETURN(auto guard, model->SummonFullParams());
//     for (const auto& [name, parameter] : model->module().NamedParameters()) Edit(parameter->data);
//     FSDP_RETURN_IF_ERROR(guard->Close());
//   }
//
// Each rank keeps the edits of the elements that its shard has; then the parameters are bound as before. Units that are
// not sharded (no_shard, one rank) bind their shard itself, so edits always stay. While the guard lives, forward,
// backward and a second guard on the same units are refused. Buffers do not change.
#ifndef FSDP_FSDP_SUMMON_FULL_PARAMS_H_
#define FSDP_FSDP_SUMMON_FULL_PARAMS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class StateGather;
class UnitStore;
struct Unit;

struct SummonFullParamsOptions {
  // All units of the module and below; off: only its own unit, if it is one.
  bool recurse = true;

  // Edits are kept; off: they are dropped on exit, which saves the copies.
  bool writeback = true;

  // Only rank 0 gets whole parameters; on other ranks they stay unbound. Requires writeback off.
  bool rank0_only = false;

  // Whole parameters are in host memory. Together with rank0_only, a host of many ranks holds one copy instead of many.
  bool offload_to_cpu = false;

  // Gradients are bound too, for parameters that have one on some rank; elements of ranks without one are zero.
  // Requires use_orig_params and offload_to_cpu off.
  bool with_grads = false;
};

class SummonFullParamsGuard final {
 public:
  // Made by the SummonFullParams of a model: gathers the units of `module` and below, which must outlive it with
  // `units`. kUnimplemented for flags that exclude
  // each other; kFailedPrecondition for a unit that is summoned already. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> Create(Module& module, const UnitStore& units,
                                                                       const SummonFullParamsOptions& options);

  // Closes the guard if the program did not. The error is dropped; a failed collective fails the next.
  ~SummonFullParamsGuard();
  SummonFullParamsGuard(const SummonFullParamsGuard&) = delete;
  SummonFullParamsGuard& operator=(const SummonFullParamsGuard&) = delete;

  // Writes back and binds as before. kInvalidArgument, naming the parameter, if the program bound a tensor of another
  // shape or dtype. Later calls do nothing. Collective; blocks.
  absl::Status Close();

 private:
  // The previous and the current tensors that one parameter is bound to.
  struct Binding {
    Tensor data_before, grad_before;
    Tensor full, full_grad;  // undefined on a rank that does not receive, and if storage is lent
  };

  SummonFullParamsGuard(const UnitStore& units, const SummonFullParamsOptions& options);

  absl::Status Open();
  absl::Status OpenUnit(int unit, const std::vector<bool>& has_grad);
  absl::Status GatherGradients(int unit, const std::vector<bool>& has_grad);
  absl::StatusOr<Tensor> NewTensor(const Unit& unit, size_t index);
  absl::Status WriteBack(int unit);
  absl::Status CopyIfElsewhere(const Tensor& from, const Tensor& to);
  void Rebind(int unit);

  const UnitStore& units_;
  const SummonFullParamsOptions options_;
  std::unique_ptr<StateGather> gather_;
  std::vector<int> summoned_;                   // units
  std::vector<std::vector<Binding>> bindings_;  // by summoned unit and parameter
  bool open_ = false;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_SUMMON_FULL_PARAMS_H_
