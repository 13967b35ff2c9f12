// SPDX-License-Identifier: Apache-2.0
//
// ParameterInit: the source of the first values of parameters, before they are sharded: the memory that they have, a
// function of the program, their Initializers, or rank 0.
#ifndef FSDP_FSDP_UNITS_PARAMETER_INIT_H_
#define FSDP_FSDP_UNITS_PARAMETER_INIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/wrap/partition.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// The fields of FsdpOptions by these names.
struct ParameterInit {
  uint64_t seed = 0;                // for the Initializers
  ParamInitFn param_init_fn = {};   // called for every module of a unit that has a parameter without memory
  bool sync_module_states = false;  // broadcast all values from rank 0
};

// The most bytes that one broadcast of sync_module_states carries, unless one tensor is larger.
inline constexpr int64_t kSyncBucketBytes = int64_t{250} << 20;

// Applies param_init_fn to the own modules of `unit`, outermost first, if it has a parameter without memory.
// kFailedPrecondition names a parameter that is still without memory, kInvalidArgument one whose memory has another
// shape.
absl::Status MaterializeUnit(const UnitModule& unit, const ParamInitFn& param_init_fn);

// Makes the parameters of `unit` equal to those on the groups' first ranks: over the shard group, then over the
// replicate group. Each parameter gets device memory for the whole tensor. Collective; blocks.
absl::Status SyncParameters(const UnitModule& unit, const UnitGroups& groups, uint64_t seed, Stream& stream);

// Then, if `tensor_parallel` is not null: makes the parameters of which each of its ranks has the whole tensor equal on
// these ranks. Collective; blocks.
absl::Status SyncCopies(const UnitModule& unit, const std::shared_ptr<ProcessGroup>& tensor_parallel, Stream& stream);

// Copies the first rank's `tensors` to all ranks of the groups, in buckets. Ranks pass tensors of equal sizes.
// Collective; blocks.
absl::Status BroadcastTensors(absl::Span<const Tensor> tensors, const UnitGroups& groups, Stream& stream);

// Writes the values of elements `interval` of `parameter` to `out`, in the dtype of `out`, on the stream's device: the
// values in the parameter's memory, or its Initializer's under `seed` if it has no memory. Blocks.
absl::Status CopyInitialValues(const Parameter& parameter, const Interval& interval, uint64_t seed, const Tensor& out,
                               Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_PARAMETER_INIT_H_
