// SPDX-License-Identifier: Apache-2.0
//
// The model's half of state dicts: FULL, LOCAL and SHARDED, their inverse, and the live view that a checkpoint fills in
// place. Free functions over a model's units; fully_sharded_data_parallel.h documents the behaviour.
//
// FULL and SHARDED tensors are copies in the original dtype, LOCAL ones the live slices of the shards, found without
// communication. Buffers and ignored parameters lie beside them, whole and live, buffers in FULL and SHARDED in their
// original dtype.
#ifndef FSDP_FSDP_STATE_MODEL_STATE_H_
#define FSDP_FSDP_STATE_MODEL_STATE_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Aliases and flat layouts of the units, and no tensors: what every state dict of the model begins with.
StateDict EmptyStateDict(const UnitStore& units);

// `root` is the module that `units` were made of. Collective, but for LOCAL.
absl::StatusOr<StateDict> GetModelState(Module& root, const UnitStore& units, const StateForm& form);

// Collective, but for LOCAL.
absl::StatusOr<IncompatibleKeys> LoadModelState(Module& root, const UnitStore& units, const StateDict& state,
                                                StateDictType type, const LoadStateDictOptions& options);

// This rank's live slices of the parameters and all that lies beside them, aliased.
absl::StatusOr<StateDict> LiveModelState(Module& root, const UnitStore& units);

// One live slice of a whole tensor of `shape`; `replica`: see ShardedTensor.
ShardedTensor LiveSlice(const Shape& shape, const Interval& interval, const Tensor& slice, int replica);

// The sources that loads of these types read from, the model's and the optimizer's.
StateSource SourceOf(StateDictType type, const LoadStateDictOptions& options);
StateSource SourceOf(const StateDictSettings& settings, const LoadStateDictOptions& options);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_MODEL_STATE_H_
