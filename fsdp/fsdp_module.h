// SPDX-License-Identifier: Apache-2.0
//
// FsdpModule: what FullyShard adds to a module, PyTorch's FSDPModule: one unit's settings, and, on the root, the
// model's state. Settings may be made before the first step or between steps. One thread per rank; calls that say
// "collective" must be made by every rank.
#ifndef FSDP_FSDP_FSDP_MODULE_H_
#define FSDP_FSDP_FSDP_MODULE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/options/fully_shard_options.h"
#include "fsdp/fsdp/options/state_dict_config.h"
#include "fsdp/fsdp/options/unit_controls.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/fsdp/unshard_handle.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class FsdpRoot;

// Whether a setting is for this module's unit alone or for all units below it as well.
enum class Recurse : bool { kNo = false, kYes = true };

class FsdpModule final : public ModuleExtension, private ModuleHooks {
 public:
  // Made by FullyShard, which hooks the modules to it; the root's executor takes the hooks over.
  FsdpModule(std::vector<Module*> modules, std::shared_ptr<const DeviceMesh> mesh, const FullyShardOptions& options);
  ModuleHooks* hooks() { return this; }
  ~FsdpModule() override;

  // The one that FullyShard gave `module`; null where it was not applied.
  static FsdpModule* Of(const Module& module);

  // The root. The first use of one of these makes this module the root of all below it: parameters get names, shards
  // and values. Collective that time. kFailedPrecondition when a module below was a root before, or when this is a unit
  // of several modules.

  // A tape for forward and backward of the model. Off `training`, forward keeps nothing for a backward.
  absl::StatusOr<Tape> NewTape(bool training = true);

  // One per parameter, shared ones once, in unit order; this rank's rows. They live as long as the module.
  absl::StatusOr<std::vector<ShardedParameter*>> parameters();

  // This rank's rows of every parameter, the live memory, without communication; SHARDED.
  absl::StatusOr<StateDict> GetStateDict();

  // Whole tensors, copied; collective. The rest, optimizers' state too: FullyShardedDataParallel::FromFullyShard.
  absl::StatusOr<StateDict> GetFullStateDict(const FullStateDictConfig& config = {});

  // Into the live rows, from a state dict of either type. Names that are missing or unexpected are an error, or, not
  // strict, are returned. Collective.
  absl::StatusOr<IncompatibleKeys> LoadStateDict(const StateDict& state, const LoadStateDictOptions& options = {});

  // All units below and what carries them out, for what treats both APIs alike.
  absl::StatusOr<FsdpRoot*> Root();

  // One unit.

  // All-gathers this unit's parameters, or starts to, ahead of forward or to look at them; what is changed in them is
  // lost at Reshard. Does nothing where they are unsharded. Collective.
  absl::Status Unshard();
  absl::StatusOr<UnshardHandle> UnshardAsync();
  absl::Status Reshard();

  // Off: backward accumulates unsharded gradients without communication.
  absl::Status set_requires_gradient_sync(bool requires_gradient_sync, Recurse recurse = Recurse::kYes);

  // Off, on a mesh of two dimensions: gradients are reduce-scattered and accumulate, without an all-reduce.
  absl::Status set_requires_all_reduce(bool requires_all_reduce, Recurse recurse = Recurse::kYes);

  absl::Status set_reshard_after_forward(bool reshard_after_forward, Recurse recurse = Recurse::kYes);
  absl::Status set_reshard_after_backward(bool reshard_after_backward, Recurse recurse = Recurse::kYes);

  // Off, for this unit alone: its backward needs no parameters (an embedding), so it is not gathered for it.
  absl::Status set_unshard_in_backward(bool unshard_in_backward);

  // Off: more backwards of this step follow, so the end of this one is not waited for. The root's.
  absl::Status set_is_last_backward(bool is_last_backward);

  // What gradients of this unit are divided by, in place of the number of ranks. This unit alone.
  absl::Status set_gradient_divide_factor(double factor);

  // Collectives of this unit only sum, and the division is a kernel after them.
  absl::Status set_force_sum_reduction_for_comms(bool force);

  // Called with this unit's reduced gradient, in the reduce dtype, before the last division.
  absl::Status set_all_reduce_hook(AllReduceHook hook);

  // Null: the process group's.
  absl::Status set_custom_all_gather(std::shared_ptr<AllGatherComm> comm, Recurse recurse = Recurse::kYes);
  absl::Status set_custom_reduce_scatter(std::shared_ptr<ReduceScatterComm> comm);

  // Units to all-gather right after this one, in this order. kInvalidArgument for a null.
  absl::Status set_modules_to_forward_prefetch(const std::vector<FsdpModule*>& modules);
  absl::Status set_modules_to_backward_prefetch(const std::vector<FsdpModule*>& modules);

  // The next forward's all-gathers wait for `event` in place of everything on the compute stream. Once; the root's.
  absl::Status set_post_optim_event(Event event);

  const std::vector<Module*>& modules() const { return modules_; }
  const std::shared_ptr<const DeviceMesh>& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  const UnitControls& controls() const { return controls_; }
  bool is_root() const { return own_root_ != nullptr; }

  // For FsdpRoot: `unit` is this one's index there, -1 where it has no parameters.
  void JoinRoot(FsdpRoot* root, int unit);

  // Nothing where the schedule chooses.
  const std::optional<std::vector<FsdpModule*>>& forward_prefetch() const { return forward_prefetch_; }
  const std::optional<std::vector<FsdpModule*>>& backward_prefetch() const { return backward_prefetch_; }

 private:
  // Until the root's first use, when its executor takes these over: forward and backward are errors.
  absl::Status PreForward(Module& module, Tensor& input, Tape& tape) override;
  absl::Status PostForward(Module& module, Tensor& output, Tape& tape) override;
  absl::Status PreBackward(Module& module, Tensor& grad_output, Tape& tape) override;
  absl::Status PostBackward(Module& module, Tensor& grad_input, Tape& tape) override;

  absl::Status Set(const std::function<void(UnitControls&)>& change, Recurse recurse);

  const std::vector<Module*> modules_;
  const std::shared_ptr<const DeviceMesh> mesh_;
  const FullyShardOptions options_;
  UnitControls controls_;  // the prefetch lists apart
  std::optional<std::vector<FsdpModule*>> forward_prefetch_, backward_prefetch_;

  FsdpRoot* root_ = nullptr;  // null before the root's first use
  int unit_ = -1;             // in root_; -1 where it has no parameters
  std::unique_ptr<FsdpRoot> own_root_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FSDP_MODULE_H_
