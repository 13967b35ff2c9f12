// SPDX-License-Identifier: Apache-2.0
//
// Start here: everything a training program needs of checkpoint/. A checkpoint is a directory that appears whole or not
// at all; docs/checkpoint_format.md specifies it, checkpoint/save.cc numbers the steps of its commit.
//
//   FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, "checkpoints", step, *group));           // on every rank
//   FSDP_ASSIGN_OR_RETURN(std::string newest, LatestCheckpoint("checkpoints"));
//   FSDP_RETURN_IF_ERROR(LoadCheckpoint(newest, wanted));                               // any world size, any kind
#ifndef FSDP_CHECKPOINT_CHECKPOINT_H_
#define FSDP_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/checkpoint/retention.h"          // PruneCheckpoints
#include "fsdp/checkpoint/save/save_options.h"  // SaveOptions
#include "fsdp/checkpoint/verify/latest.h"      // LatestCheckpoint, ListCheckpoints
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Saves `state` as ROOT/step-NNNNNNNN. Every rank of `group` calls it with its own part. `state.type` is the kind:
// kFull: rank 0's state is written, as one file, and the others' must be empty (rank0_only) or are ignored;
// kSharded: each rank writes its part; kLocal: each rank writes its flat shards as `state.units` lay them out. Texts
// and attributes are rank 0's; those of other ranks that are not ignored must be equal (kFailedPrecondition). ROOT is
// made if needed. Blocks until the checkpoint is durable and committed; returns its path. On any rank's failure every
// rank gets that rank's error, and nothing is left behind. Tensors must be in host memory (kInvalidArgument, by name);
// AsyncSaver takes a GPU's. Issues control-plane gathers only.
absl::StatusOr<std::string> SaveCheckpoint(const StateDict& state, const std::string& root, int64_t step,
                                           ProcessGroup& group, const SaveOptions& options = {});

struct LoadOptions {
  // Compare the digest of every block that is read. Costs little; turn it off for a checkpoint that was just verified.
  bool verify = true;

  // True: a tensor of `wanted` that the checkpoint lacks is an error. False: it is left unchanged and named in
  // `missing`. Either way so is the optimizer state of a parameter of which the checkpoint's optimizer has none, though
  // it has some of others: such a parameter never had a gradient.
  bool strict = true;
  std::vector<std::string>* missing = nullptr;  // may be null

  // The device with the memory of `wanted`; null: host memory. With a GPU, part of `wanted` may be in host memory.
  // Memory of another device is kInvalidArgument, by name.
  Device* device = nullptr;

  // Threads that read, each with several blocks in flight.
  int io_threads = 4;

  // The parameters in FSDP1's flat parameters, for a torch file or a DCP directory with flat parameters, whose layout
  // the files do not record: the parameters of the model in the order of named_parameters() before it was wrapped.
  // ReadFlatLayout reads it from a file; a program that has built the model can make it from the model.
  std::optional<FlatLayout> flat_layout = {};
};

// Fills `wanted`, its shards (any intervals of any tensors) and its texts, from the checkpoint at `path`, and sets its
// attributes to those that were saved (none where the checkpoint records none). The checkpoint may be ours, a torch
// file or a DCP directory; a safetensors file or a Hugging Face directory, which hold a model only. Converts dtypes
// where they differ. Local: no rank waits for another, and only the wanted blocks are read. kDataLoss names the tensor,
// file and byte range that is damaged; kInvalidArgument a tensor whose shape differs; kNotFound one that is missing
// (strict).
absl::Status LoadCheckpoint(const std::string& path, StateDict& wanted, const LoadOptions& options = {});

struct DescribeOptions {
  // Leave out the optimizer of a torch file or a DCP directory, which then need not be readable.
  bool model_only = false;

  // LoadOptions::flat_layout.
  std::optional<FlatLayout> flat_layout = {};

  // Describe an HDF5 file without what links of it lead to, which are not followed. Otherwise such a file is refused,
  // and the error names them.
  bool skip_links = false;
};

// The names, shapes and dtypes that a checkpoint holds, with empty shards, its texts, aliases, unit layouts and
// attributes: everything that LoadCheckpoint can be asked for. Reads metadata only.
absl::StatusOr<StateDict> DescribeCheckpoint(const std::string& path, const DescribeOptions& options = {});

// The step number recorded in a checkpoint: of ours in its manifest, of a torch file or a DCP directory under "step".
// kInvalidArgument for one that has none, such as a safetensors file. `flat_layout`: LoadOptions::flat_layout.
absl::StatusOr<int64_t> CheckpointStep(const std::string& path, const std::optional<FlatLayout>& flat_layout = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CHECKPOINT_H_
