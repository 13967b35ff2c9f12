// SPDX-License-Identifier: Apache-2.0
//
// ParameterInit: where parameters get their first values from, before they are sharded: the memory that they have, a
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

struct ParameterInit {
  uint64_t seed = 0;               // of the Initializers
  ParamInitFn param_init_fn = {};  // called for every module of a unit that has a parameter without memory
  bool sync_module_states = false;
};

// Bytes that one broadcast of sync_module_states carries at most, unless one tensor is larger.
inline constexpr int64_t kSyncBucketBytes = int64_t{250} << 20;

// Applies param_init_fn to the own modules of `unit`, outermost first, if it has a parameter without memory.
// kFailedPrecondition names a parameter that is left without, kInvalidArgument one whose memory has another shape.
absl::Status MaterializeUnit(const UnitModule& unit, const ParamInitFn& param_init_fn);

// Makes the parameters of `unit` equal to those of the groups' first ranks: over the shard group, then over the
// replicate group. Those without memory get some. Collective; blocks.
absl::Status SyncParameters(const UnitModule& unit, const UnitGroups& groups, uint64_t seed, Stream& stream);

// Makes every byte of `tensors` that of the groups' first ranks, in buckets. Collective; blocks.
absl::Status BroadcastTensors(absl::Span<const Tensor> tensors, const UnitGroups& groups, Stream& stream);

// Values of `interval` of `parameter`, in its own dtype, to `out` on the stream's device: those that its memory has, or
// its Initializer's under `seed`. Blocks.
absl::Status CopyInitialValues(const Parameter& parameter, const Interval& interval, uint64_t seed, const Tensor& out,
                               Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_PARAMETER_INIT_H_
