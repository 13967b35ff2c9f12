// SPDX-License-Identifier: Apache-2.0
//
// FsdpOptions and its parts, by PyTorch's names and with its defaults (torch/distributed/fsdp/api.py). All ranks must
// pass the same options.
#ifndef FSDP_FSDP_OPTIONS_OPTIONS_H_
#define FSDP_FSDP_OPTIONS_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/fsdp/options/wrap_policy.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/trace.h"

namespace fsdp {

struct FsdpOptions {
  // Behaviour.

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;

  // Ranks per shard group of the hybrid strategies, if this library makes the groups: consecutive ranks shard, ranks of
  // equal place in their block replicate. Divides the ranks. Needs an auto_wrap_policy, as in PyTorch, and a unit whose
  // strategy is hybrid. Default: the ranks of a host, or all ranks if there is only one host; hosts with unequal
  // numbers of ranks are an error then (group_hosts.h). Groups that are given as a pair or a mesh stay as they are.
  std::optional<int> shard_group_size = {};

  MixedPrecision mixed_precision = {};

  // Which submodules become units; the root always is one. Default: none.
  WrapPolicy auto_wrap_policy = {};

  // FSDP1's two flat layouts: false is plain concatenation; true aligns each parameter to 16 bytes of the forward
  // dtype. Names, shapes and hyperparameters are per original parameter in both.
  bool use_orig_params = false;

  // Modules, with all modules below them, or parameters that FSDP does not manage: see ignored_states.h. At most one of
  // the two fields may be set.
  std::vector<Module*> ignored_modules = {};
  std::variant<std::monostate, std::vector<Module*>, std::vector<std::shared_ptr<Parameter>>> ignored_states = {};

  // Keep parameters, gradients and optimizer state in pinned host memory; parameters are copied to the device for
  // compute.
  CpuOffload cpu_offload = {};

  // Compute in the original dtype while evaluating (a tape that keeps nothing), overriding mixed_precision.
  bool full_precision_in_eval = false;

  // Keep only the input of every wrapped module but the root for backward, which runs its forward again. Warns if no
  // module but the root is wrapped.
  bool activation_checkpointing = false;

  // While training, check the order in which units run. In the first forward a difference between ranks is an error;
  // later a difference from the first forward is a warning. Costs one round of the control plane for each unit of the
  // first forward.
  bool check_execution_order = false;

  // Gives memory and values to a module's own parameters that do not have any yet (meta parameters); called unit by
  // unit. Default: the parameters' Initializers, seeded by init_seed.
  ParamInitFn param_init_fn = {};
  uint64_t init_seed = 0;

  // Broadcast parameters and buffers from rank 0 before they are sharded, for ranks that start from different values.
  bool sync_module_states = false;

  // The device that the model is meant for, "cuda:1", "cpu" or "cuda"; refused unless the groups are on it. Default:
  // theirs.
  std::optional<std::string> device_id = {};

  // Performance.

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;

  // All-gather the next unit of the previous step's order before the current unit's forward. Default off: it costs one
  // more unsharded unit and pays only if the host is slow to issue work.
  bool forward_prefetch = false;

  // Allocate only as many unsharded slots as the schedule needs, so that an all-gather waits for the unit that had its
  // slot before. Off: one slot for each unit; no all-gather waits, and memory is as under shard_grad_op.
  bool limit_all_gathers = true;

  // FsdpModule::set_symm_mem_for_comm and set_copy_engine_all_gather of every unit: the memory of all-gathers and
  // reduce-scatters is a symmetric window of NCCL's; with the second, which needs the first, all-gathers use the GPU's
  // copy engines. Refused, naming what is missing, for other backends and older NCCLs.
  bool symm_mem_for_comm = false;
  bool copy_engine_all_gather = false;

  // Let the optimizer write each parameter twice in one pass, in float32 and in bfloat16, for units whose param_dtype
  // is bfloat16. An all-gather then starts from the bfloat16 copy and does not cast, and a unit that is not sharded
  // computes on the copy. Costs 2 bytes for each element of a shard; offloaded units have no copy. Code that writes
  // ShardedParameter::data directly (not through AdamW, Sgd or this model's calls) must call MarkChanged(); otherwise
  // the write is ignored by the next all-gather. Not set: on for units on a GPU, on which a pass over the parameters
  // costs most compared with the rest of a step.
  std::optional<bool> optimizer_casts = {};

  // Gets a span for each unit's all-gather, forward, backward, reduce-scatter and all-reduce. Default: does not make
  // spans.
  std::shared_ptr<Trace> trace = {};
};

// kInvalidArgument, naming the field, its value and the expected values, for options that no model can have. Wrap
// checks the options that depend on the module or on the number of ranks.
absl::Status Validate(const FsdpOptions& options);

// kInvalidArgument if there is a shard_group_size that nothing uses: `hybrid` is true if some unit's strategy is
// hybrid.
absl::Status CheckShardGroupSizeIsUsed(const FsdpOptions& options, bool hybrid);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_OPTIONS_H_
