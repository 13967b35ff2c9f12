// SPDX-License-Identifier: Apache-2.0
//
// The model's half of state dicts: FULL, LOCAL and SHARDED, their inverse, and the live view that a checkpoint fills in
// place. Free functions over a model's units; fully_sharded_data_parallel.h documents the behaviour.
//
// FULL and SHARDED tensors are copies in the original dtype, LOCAL ones the live slices of the shards, found without
// communication. Buffers and ignored parameters are included whole and live; FULL and SHARDED have buffers in their
// original dtype.
#ifndef FSDP_FSDP_STATE_MODEL_STATE_H_
#define FSDP_FSDP_STATE_MODEL_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Aliases and flat layouts of the units, without tensors: every state dict of the model begins with these.
StateDict EmptyStateDict(const UnitStore& units);

// The model's state in the form of `form`; `root` is the module that `units` were made of. kInvalidArgument for LOCAL
// of a model made with a mesh. Collective, except LOCAL; blocks.
absl::StatusOr<StateDict> GetModelState(Module& root, const UnitStore& units, const StateForm& form);

// Copies `state`, a state dict of `type`, into the shards and the replicated tensors, and returns the names that did
// not match. kInvalidArgument, on every rank and before anything is changed, for a tensor of another shape, dtype or
// form and, if options.strict, for names that do not match. Collective, except LOCAL; blocks.
absl::StatusOr<IncompatibleKeys> LoadModelState(Module& root, const UnitStore& units, const StateDict& state,
                                                StateDictType type, const LoadStateDictOptions& options);

// This rank's live slices of the parameters, and the replicated tensors. All alias the model's memory.
absl::StatusOr<StateDict> LiveModelState(Module& root, const UnitStore& units, const StateDictOptions& options = {});

// The live slice of a parameter, or a state of it, that this rank has: `slice` has the elements of
// `parameter.interval`. A part of a larger tensor is one shard for each run of elements of that tensor.
ShardedTensor LiveSlicesOf(const ShardedParameter& parameter, const Tensor& slice, int replica);

// One live slice of a whole tensor of `shape`; `replica`: see ShardedTensor.
ShardedTensor LiveSlice(const Shape& shape, const Interval& interval, const Tensor& slice, int replica);

// kInvalidArgument for a LOCAL state of a model that was made with a mesh.
absl::Status CheckLocalIsOfNoMesh(const UnitStore& units, StateDictType type);

// kInvalidArgument for a LOCAL state of a model with tensor parallelism.
absl::Status CheckLocalIsFlat(const UnitStore& units, StateDictType type);

// The sources that loads of these types read from, the model's and the optimizer's.
StateSource SourceOf(StateDictType type, const LoadStateDictOptions& options);
StateSource SourceOf(const StateDictSettings& settings, const LoadStateDictOptions& options);

// A tensor of the model that every rank has whole, outside its units: a persistent buffer or an ignored parameter.
struct ReplicatedTensor {
  std::string fqn;
  Tensor data;                    // the live one
  DType dtype = DType::kFloat32;  // the original dtype, as in state dicts; `data` may have another
  bool frozen = false;            // a parameter whose requires_grad is off
};

// All replicated tensors of `root`, each under its first name: parameters first, then buffers. kFailedPrecondition
// names a tensor that has no memory.
absl::StatusOr<std::vector<ReplicatedTensor>> ReplicatedTensors(Module& root, const UnitStore& units);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_MODEL_STATE_H_
