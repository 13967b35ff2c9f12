// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of our own format only, for a program that saves its state and resumes from it. It links no reader of
// another format (no pickle, no zip, no safetensors); checkpoint/checkpoint.h has all of this and loads any format. A
// checkpoint is a directory that appears whole or not at all; docs/checkpoint_format.md specifies it,
// checkpoint/native/save.cc numbers the steps of its commit.
//
//   FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, "checkpoints", step, *group));           // on every rank
//   FSDP_RETURN_IF_ERROR(LoadNativeCheckpoint("checkpoints", wanted, *group));          // the newest, on any world
//   size
#ifndef FSDP_CHECKPOINT_NATIVE_NATIVE_CHECKPOINT_H_
#define FSDP_CHECKPOINT_NATIVE_NATIVE_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/retention.h"          // PruneCheckpoints
#include "fsdp/checkpoint/native/save/save_options.h"  // SaveOptions
#include "fsdp/checkpoint/native/verify/latest.h"      // LatestCheckpoint, ListCheckpoints
#include "fsdp/checkpoint/source/load.h"               // LoadOptions
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Saves `state` as ROOT/step-NNNNNNNN. Every rank of `group` calls it with its own part. `state.type` is the kind:
// kFull: rank 0's state is written, as one file, and the others' must be empty (rank0_only) or are ignored; kSharded:
// each rank writes its part; kLocal: each rank writes its flat shards in the layout of `state.units`. Texts and
// attributes are taken from rank 0. A rank whose state is not ignored must have equal ones (kFailedPrecondition). ROOT
// is made if needed. Blocks until the checkpoint is durable and committed; returns its path. On any rank's failure
// every rank gets that rank's error, and nothing is left behind. Tensors must be in host memory (kInvalidArgument, by
// name); AsyncSaver takes a GPU's. Issues control-plane gathers only.
absl::StatusOr<std::string> SaveCheckpoint(const StateDict& state, const std::string& root, int64_t step,
                                           ProcessGroup& group, const SaveOptions& options = {});

// LoadCheckpoint (checkpoint/checkpoint.h) of a checkpoint of ours: a checkpoint directory, or a ROOT of them, from
// which it loads the newest that verifies. kInvalidArgument for a path of any other format.
absl::Status LoadNativeCheckpoint(const std::string& path, StateDict& wanted, const LoadOptions& options = {});

// The collective LoadCheckpoint (checkpoint/checkpoint.h) of a checkpoint of ours: all ranks load the same step of the
// same save. Collective; blocks.
absl::Status LoadNativeCheckpoint(const std::string& path, StateDict& wanted, ProcessGroup& group,
                                  const LoadOptions& options = {});

// The step in the manifest of the checkpoint directory `path`. kDataLoss, naming a remaining file, when the manifest is
// missing; kInvalidArgument if the checkpoint was converted from one that does not record its step.
absl::StatusOr<int64_t> NativeCheckpointStep(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_NATIVE_CHECKPOINT_H_
