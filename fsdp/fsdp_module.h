// SPDX-License-Identifier: Apache-2.0
//
// FsdpModule: the object that FullyShard adds to a module, PyTorch's FSDPModule: the settings of one unit and, on the
// root, the model's state, its gradients and the state of its optimizer. Settings may be changed before the first step
// and between passes, by all ranks alike; within a forward or backward setters return kFailedPrecondition. One thread
// for each rank; calls marked "collective" must be made by every rank.
#ifndef FSDP_FSDP_FSDP_MODULE_H_
#define FSDP_FSDP_FSDP_MODULE_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/model_operations.h"
#include "fsdp/fsdp/options/fully_shard_options.h"
#include "fsdp/fsdp/options/state_dict_config.h"
#include "fsdp/fsdp/options/unit_controls.h"
#include "fsdp/fsdp/summon_full_params.h"
#include "fsdp/fsdp/unshard_handle.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class FsdpModuleTree;
class ShardedModel;
struct UnitStreams;

// Whether a setting is only for this module's unit or for all units below it as well.
enum class Recurse : bool { kNo = false, kYes = true };

class FsdpModule final : public ModuleExtension, public ModelOperations, private ModuleHooks {
 public:
  // Made by FullyShard, which installs its hooks in the modules; the root's executor replaces them.
  FsdpModule(std::vector<Module*> modules, std::shared_ptr<const DeviceMesh> mesh, const FullyShardOptions& options);
  ModuleHooks* hooks() { return this; }
  ~FsdpModule() override;

  // The FsdpModule that FullyShard gave `module`; null if FullyShard was not applied.
  static FsdpModule* Of(const Module& module);

  // For the root, like all of ModelOperations. The first call of any of these makes this module the root of all modules
  // below it: parameters get names, shards and values. That call is collective and blocks. kFailedPrecondition if a
  // module below is a root already, or if this is a unit of several modules.

  // A tape for forward and backward of the model, or of a module below the root that FullyShard was applied to. Such a
  // module may be called without its root, which then runs only the part of the model below it. For a module below,
  // after the root's first use: the root's tape. With `training` off, forward keeps nothing for a backward.
  absl::StatusOr<Tape> NewTape(bool training = true);

  // This rank's rows of each parameter, shared parameters once, in the order of units. They live as long as the module.
  absl::StatusOr<std::vector<ShardedParameter*>> parameters();

  // A FULL state dict: whole tensors, copied. Collective; blocks.
  absl::StatusOr<StateDict> GetFullStateDict(const FullStateDictConfig& config = {},
                                             const StateDictOptions& options = {});

  // Adds the optimizer's state in the form of `config`; without one, SHARDED and not in host memory. `state` is empty
  // or a state dict of the same type, else kInvalidArgument. Collective; blocks.
  using ModelOperations::AddOptimStateDict;
  absl::Status AddOptimStateDict(Optimizer& optimizer, StateDict& state, const OptimStateDictConfig& config) {
    return AddOptimStateDictAs(config, optimizer, state);
  }

  // For this module and those below, of the root or after its first use.

  // Binds whole parameters while the guard lives, as FullyShardedDataParallel::SummonFullParams. kFailedPrecondition
  // within a forward or backward. Collective; blocks.
  absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> SummonFullParams(const SummonFullParamsOptions& options = {});

  // Calls `fn` for every module, children first, while the parameters of the units around it are whole. Values that
  // `fn` writes are kept. Collective; blocks.
  absl::Status Apply(const std::function<absl::Status(Module&)>& fn);

  // For the unit of this module.

  // All-gathers this unit's parameters, ahead of forward or for the program to read. Unshard waits on the compute
  // stream, UnshardAsync returns before. Changes to the parameters are lost at Reshard. Does nothing if they are
  // unsharded. May be the first use of the model, and then makes the outermost module around this one the root.
  // Collective.
  absl::Status Unshard();
  absl::StatusOr<UnshardHandle> UnshardAsync();
  absl::Status Reshard();

  // Off: backward accumulates unsharded gradients without communication.
  absl::Status set_requires_gradient_sync(bool requires_gradient_sync, Recurse recurse = Recurse::kYes);

  // Off, on a mesh of two dimensions: gradients are reduce-scattered and accumulate, without an all-reduce.
  absl::Status set_requires_all_reduce(bool requires_all_reduce, Recurse recurse = Recurse::kYes);

  absl::Status set_reshard_after_forward(bool reshard_after_forward, Recurse recurse = Recurse::kYes);
  absl::Status set_reshard_after_backward(bool reshard_after_backward, Recurse recurse = Recurse::kYes);

  // Only for this unit. Off: its backward needs no parameters (an embedding), so the unit is not gathered for backward.
  absl::Status set_unshard_in_backward(bool unshard_in_backward);

  // Off: more backwards of this step follow, so the compute stream does not wait for this one's reductions. Root only.
  absl::Status set_is_last_backward(bool is_last_backward);

  // The divisor of this unit's gradients, instead of the number of ranks. Only for this unit. kInvalidArgument unless
  // it is above 0.
  absl::Status set_gradient_divide_factor(double factor);

  absl::Status set_reduce_scatter_divide_factor(double factor) { return set_gradient_divide_factor(factor); }

  // On: collectives of this unit only sum, and a kernel divides after them.
  absl::Status set_force_sum_reduction_for_comms(bool force);

  // Called with this unit's reduced gradient, in the reduce dtype, before the last division. The hook puts its work on
  // `stream`, after the reduction and before the work that follows it; null: the reduction's own stream. It is a stream
  // of the mesh's device and outlives the training. kInvalidArgument for another device's stream, and, as in PyTorch,
  // on a mesh of two dimensions, whose all-reduce has a stream already.
  absl::Status set_all_reduce_hook(AllReduceHook hook, Stream* stream = nullptr);

  // The program's collectives for the unit; null: the process group's.
  absl::Status set_custom_all_gather(std::shared_ptr<AllGatherComm> comm, Recurse recurse = Recurse::kYes);
  absl::Status set_custom_reduce_scatter(std::shared_ptr<ReduceScatterComm> comm);

  // Buffers that gradients are copied to before their reduction, for the whole model the largest number of any unit.
  // With one, the default, backward may have to wait until the reduction before is done, if it is slower than compute;
  // with two or more it goes on, for their memory. A ReduceScatterComm has its own. kInvalidArgument below 1.
  absl::Status set_reduce_scatter_max_input_buffers(int max_input_buffers, Recurse recurse = Recurse::kYes);

  // On: reduce-scatters use a group of their own of the same ranks, made by the first such call, so that all-gathers
  // need not wait for them where one group's collectives run one at a time (NCCL). Off: the mesh's group again.
  // Collective.
  absl::Status set_separate_reduce_scatter_group(bool enable = true, Recurse recurse = Recurse::kYes);

  // On: the memory of this unit's all-gathers and reduce-scatters, which other units take turns in, is a symmetric
  // window of NCCL's, from now or the next forward on. NCCL then uses symmetric kernels where it has them: on GPUs of
  // one host with NVLink, and reduce-scatters only of sums (set_force_sum_reduction_for_comms). kFailedPrecondition,
  // naming what is missing, for other backends, an NCCL before 2.27, and custom collectives of this unit; does nothing
  // with one rank. As in PyTorch only for this unit unless `recurse`. Collective.
  absl::Status set_symm_mem_for_comm(bool enable = true, Recurse recurse = Recurse::kNo);

  // On: all-gathers of the units with set_symm_mem_for_comm use the GPU's copy engines and no multiprocessors, in an
  // NCCL communicator of their own, made by the first such call. In PyTorch a property of the process group, its
  // zero-CTA policy. kFailedPrecondition unless this unit has windows, NCCL is 2.28 or later and the driver CUDA 12.5
  // or later. Collective.
  absl::Status set_copy_engine_all_gather(bool enable = true, Recurse recurse = Recurse::kYes);

  // On: the unit's parameters are unsharded into the same memory each time, which is theirs between steps too. Without
  // it units take turns in the memory of a few.
  absl::Status set_keep_unsharded_storage(bool keep, Recurse recurse = Recurse::kYes);

  // After an error in a forward or backward: waits for the work that was issued, reshards all units, and discards every
  // gradient that no optimizer step has used, also of earlier backwards. The next step then begins afresh. A forward of
  // the root does so itself; until one of the two, calls for between passes are refused. Root only.
  absl::Status ResetIterState();

  // Units to all-gather right after this one, in this order. kInvalidArgument for a null, and, once there is a root,
  // for a module that is not below it; earlier, the first use of the root checks that.
  absl::Status set_modules_to_forward_prefetch(const std::vector<FsdpModule*>& modules);
  absl::Status set_modules_to_backward_prefetch(const std::vector<FsdpModule*>& modules);

  // The all-gathers of the next forward wait for `event` instead of all work on the compute stream. Used once. Root
  // only.
  absl::Status set_post_optim_event(Event event);

  const std::vector<Module*>& modules() const { return modules_; }
  const std::shared_ptr<const DeviceMesh>& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  const UnitControls& controls() const { return controls_; }
  bool is_root() const { return own_tree_ != nullptr; }

  // True once this module, or one around it, was used as the root.
  bool was_used() const { return tree_ != nullptr; }

  // True if both, as roots, put their work on the same streams (ShareCommCtx), or neither has streams yet.
  bool SharesStreamsWith(const FsdpModule& other) const { return streams() == other.streams(); }

  // nullopt: the schedule chooses.
  const std::optional<std::vector<FsdpModule*>>& forward_prefetch() const { return forward_prefetch_; }
  const std::optional<std::vector<FsdpModule*>>& backward_prefetch() const { return backward_prefetch_; }

 private:
  friend class FsdpModuleTree;
  friend class ShardedModel;
  friend absl::Status ShareCommCtx(const std::vector<FsdpModule*>& roots);

  // Until the root's first use, when its executor replaces these hooks: forward and backward are errors.
  absl::Status PreForward(Module& module, absl::Span<Tensor> inputs, Tape& tape) override;
  absl::Status PostForward(Module& module, absl::Span<Tensor> outputs, Tape& tape) override;
  absl::Status PreBackward(Module& module, absl::Span<Tensor> grad_outputs, Tape& tape) override;
  absl::Status PostBackward(Module& module, absl::Span<Tensor> grad_inputs, Tape& tape) override;

  // The tree of this module as the root, made now if this is its first use, or the tree of the root that it joined.
  absl::StatusOr<FsdpModuleTree*> OwnTree();
  absl::StatusOr<FsdpModuleTree*> AnyTree();
  absl::StatusOr<ShardedModel*> Model() override;

  // `unit` is the index of this module's unit in the tree's model, -1 if the module has no own parameters.
  void JoinRoot(FsdpModuleTree* tree, int unit);

  // The outermost module around this one, or this one, that FullyShard was applied to.
  FsdpModule& Outermost();

  // The streams of this module as a root; null before they exist.
  std::shared_ptr<UnitStreams> streams() const;

  absl::Status CheckBetweenPasses() const;
  absl::Status Set(const std::function<void(UnitControls&)>& change, Recurse recurse);

  const std::vector<Module*> modules_;
  const std::shared_ptr<const DeviceMesh> mesh_;
  const FullyShardOptions options_;
  UnitControls controls_;  // without prefetch lists, which are below
  std::optional<std::vector<FsdpModule*>> forward_prefetch_, backward_prefetch_;

  FsdpModule* outer_ = nullptr;     // the last one around this one that was made; outlives it
  FsdpModuleTree* tree_ = nullptr;  // null before the root's first use
  int unit_ = -1;                   // in its model; -1 if it has no parameters
  std::unique_ptr<FsdpModuleTree> own_tree_;
  std::shared_ptr<UnitStreams> streams_;  // set by ShareCommCtx
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FSDP_MODULE_H_
