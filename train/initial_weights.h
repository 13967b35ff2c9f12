// SPDX-License-Identifier: Apache-2.0
//
// The weights that a run starts from. LoadInitialWeights reads the file or directory of --init_from into a model's live
// state. ModelLayout describes the flat parameters of FSDP1 in a checkpoint: LOCAL state dicts do not record which
// parameters they hold, but the model to be filled knows its parameters and their order.
#ifndef FSDP_TRAIN_INITIAL_WEIGHTS_H_
#define FSDP_TRAIN_INITIAL_WEIGHTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The layout in `file` (--flat_layout; errors of ReadFlatLayout). If `file` is empty: the parameters of `model` in the
// order of named_parameters(), shared ones once. kFailedPrecondition, on every rank, when ranks have other layouts.
// Collective.
absl::StatusOr<FlatLayout> ModelLayout(const std::string& file, Module& model, ProcessGroup& group);

// Fills `wanted`, a model's shards, from any format that LoadCheckpoint reads, the same on every rank of `group`.
// Models are published under two spellings: with `base_prefix` ("transformer.", "model.") before all names except the
// head's, and without it. Both are read, and options.flat_layout, which has the prefix, is tried in both. `notes`, if
// not null, gets a sentence for each guess about the file and for what of it is not loaded, as `ckpt convert` notes
// them. Returns the errors of the collective LoadCheckpoint. Collective.
absl::Status LoadInitialWeights(const std::string& path, std::string_view base_prefix, StateDict& wanted,
                                ProcessGroup& group, const LoadOptions& options = {},
                                std::vector<std::string>* notes = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_INITIAL_WEIGHTS_H_
