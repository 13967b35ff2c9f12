// SPDX-License-Identifier: Apache-2.0
//
// The options that may differ from unit to unit of one model: strategy, precision and offload, by PyTorch's names and
// with its defaults (torch/distributed/fsdp/api.py). A program's options become a schedule in these steps:
//
//   FsdpOptions ---- auto_wrap_policy ---> UnitOverrides              FullyShardOptions       FsdpModule::set_*
//        |                                      |                            |                       |
//        +------------ UnitSettingsOf ----------+                    SettingsOf (fsdp_module_tree.cc)|
//        |                    |                                              |                       |
//        |                    +------------> UnitSettings <------------------+                       v
//        |                                        |                                             UnitControls
//        v                                        v                                                  |
//   ExecutorOptions                          Unit::settings, Unit::strategy                    Unit::controls
//        |                                        |                                                  |
//        |                                        +-----------------> UnitTraits <-------------------+
//        |                                                                |
//        +------------------------> ScheduleOptions <---------------------+
//                                         |
//                                         v
//                            ForwardSchedule, BackwardSchedule
//
//   FsdpOptions        the program's, for a whole model; taken by FullyShardedDataParallel::Wrap
//   FullyShardOptions  the program's, for one module; taken by each call of FullyShard
//   UnitOverrides      a custom wrap policy's, made by AutoWrap when the model is cut into units, or WrapModule's
//   UnitSettings       one unit's, fixed once the unit is made, with all rules of precedence applied
//   UnitControls       one unit's, which FSDP2's setters change between passes; FSDP1's keep their defaults
//   ExecutorOptions    the model's prefetching and checks; copied from FsdpOptions when the Executor is made
//   UnitTraits         all that a schedule knows of one unit; made by the Executor at the start of each pass, from the
//                      unit's strategy, settings and controls
//   ScheduleOptions    the traits of all units and the model's prefetching; made with them
#ifndef FSDP_FSDP_OPTIONS_UNIT_OPTIONS_H_
#define FSDP_FSDP_OPTIONS_UNIT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/options/module_predicate.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/parameter.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

enum class ShardingStrategy : uint8_t {
  kFullShard,         // parameters, gradients and optimizer state sharded; parameters resharded after forward
  kShardGradOp,       // as kFullShard, but parameters stay unsharded from forward to backward
  kNoShard,           // everything replicated, gradients all-reduced; what any strategy becomes in a shard group of 1
  kHybridShard,       // kFullShard within a shard group, replicated over the groups
  kHybridShardZero2,  // kShardGradOp within a shard group, replicated over the groups
};

// "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2".
std::string_view ShardingStrategyName(ShardingStrategy strategy);
absl::StatusOr<ShardingStrategy> ParseShardingStrategy(std::string_view name);

inline bool IsHybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
}

// True if parameters are resharded between forward and backward, and after a backward without synchronisation.
inline bool ReshardsAfterForward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

// At which point of a unit's backward the unit that backward needs next is all-gathered.
enum class BackwardPrefetch : uint8_t {
  kBackwardPre,   // before the current unit's gradients are computed: most overlap, one more unit in memory
  kBackwardPost,  // after they were computed and the unit resharded, before its reduce-scatter
  kNone,          // when it is needed: least memory, no overlap
};

// "pre", "post", "none".
std::string_view BackwardPrefetchName(BackwardPrefetch prefetch);
absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(std::string_view name);

// Gives the parameters of `module` itself, not of its children, memory and values: Parameter::data, of the parameter's
// shape, on the host or on the device.
using ParamInitFn = std::function<absl::Status(Module& module)>;

// FSDP1's precision of a unit. The optimizer updates sharded parameters in their original dtype.
struct MixedPrecision {
  // The dtype of unsharded parameters, and so of all-gather, forward and backward; default: the original dtype.
  std::optional<DType> param_dtype = {};

  // The dtype of the gradient reduction; default: param_dtype.
  std::optional<DType> reduce_dtype = {};

  // The dtype of floating-point buffers; default: the original dtype, which state dicts always have.
  std::optional<DType> buffer_dtype = {};

  // Hand gradients to the optimizer in param_dtype (of a unit that is not sharded: in reduce_dtype). They still
  // accumulate in the original dtype while a backward adds to them.
  bool keep_low_precision_grads = false;

  // Cast floating-point inputs to param_dtype: of every unit's forward, and of the root's. The root casts if either is
  // set.
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;

  // Modules that an auto_wrap_policy leaves out of mixed precision, each as a separate unit; PyTorch's
  // _module_classes_to_ignore. Without a policy it does nothing.
  ModulePredicate module_classes_to_ignore = IsBatchNorm();

  bool enabled() const { return param_dtype.has_value() || reduce_dtype.has_value(); }
};

// kInvalidArgument, naming the field, for a dtype that no unit computes or reduces in: float64, float32, bfloat16 and
// float16 are expected.
absl::Status Validate(const MixedPrecision& precision);

// Parameters, gradients and so optimizer state of the unit are in pinned host memory and are copied to the device for
// compute.
struct CpuOffload {
  bool offload_params = false;
};

// The dtype of one parameter's all-gather and compute: its original one or param_dtype; nullopt: param_dtype.
using ParamDTypeOverrideFn = std::function<std::optional<DType>(const Parameter& parameter)>;

// FSDP2's precision of a unit (torch/distributed/fsdp/_fully_shard/_fsdp_api.py). There is no dtype for buffers.
struct MixedPrecisionPolicy {
  std::optional<DType> param_dtype = {};   // of all-gather and compute; default: the original dtype
  std::optional<DType> reduce_dtype = {};  // default: the gradients' dtype, that of compute, as before PyTorch 2.15
  std::optional<DType> output_dtype = {};  // floating-point outputs of the unit are cast to it
  bool cast_forward_inputs = true;         // floating-point inputs are cast to param_dtype, if that is set

  // Keeps parameters of the unit in their original dtype, such as norms and routers in float32: called once for each,
  // by its fqn, at the root's first use, alike on every rank. Their gradients are reduced by a collective of their own.
  ParamDTypeOverrideFn param_dtype_override_fn = {};
};

// As Validate of MixedPrecision.
absl::Status Validate(const MixedPrecisionPolicy& policy);

// FSDP2's offload: shards and gradients in host memory, pinned so that copies overlap with compute.
struct CpuOffloadPolicy {
  bool pin_memory = true;
};
using OffloadPolicy = std::optional<CpuOffloadPolicy>;

// The groups of one unit: PyTorch's process_group of an inner instance, one group or a tuple. Together they have the
// ranks that the model has.
struct UnitProcessGroup {
  std::shared_ptr<ProcessGroup> shard;
  std::shared_ptr<ProcessGroup> replicate = nullptr;  // of the hybrid strategies only
};

// The options that a wrap policy or WrapModule sets for one unit. A field that is not set has the model's option.
struct UnitOverrides {
  std::optional<ShardingStrategy> sharding_strategy = {};
  std::optional<MixedPrecision> mixed_precision = {};
  std::optional<CpuOffload> cpu_offload = {};

  // For a unit without mixed precision inside a model with it: floating-point inputs are cast to the original dtype,
  // and outputs back to the dtype that came in.
  bool keep_full_precision = false;

  // Keep only the unit's input for backward, which runs its forward again.
  std::optional<bool> activation_checkpointing = {};

  // The collectives of this unit go through these groups; default: the model's.
  std::optional<UnitProcessGroup> process_group = {};

  // The unit to all-gather ahead while this one runs.
  std::optional<BackwardPrefetch> backward_prefetch = {};
  std::optional<bool> forward_prefetch = {};

  // Gives this unit's parameters their values, instead of the model's function or the Initializers.
  ParamInitFn param_init_fn = {};
};

// As Validate of the model's options.
absl::Status Validate(const UnitOverrides& overrides);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_UNIT_OPTIONS_H_
