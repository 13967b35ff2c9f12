// SPDX-License-Identifier: Apache-2.0
//
// Start here: everything that a training program needs from checkpoint/. A checkpoint is a directory that appears whole
// or not at all; docs/checkpoint_format.md specifies it, and checkpoint/native/save.cc numbers the steps of its commit.
//
//   FSDP_RETURN_IF_ERROR(SaveCheckpoint(state, "checkpoints", step, *group));           // on every rank
//   FSDP_RETURN_IF_ERROR(LoadCheckpoint("checkpoints", wanted, *group));                // the newest, on any world
//   size
#ifndef FSDP_CHECKPOINT_CHECKPOINT_H_
#define FSDP_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/native_checkpoint.h"  // SaveCheckpoint, LatestCheckpoint, PruneCheckpoints
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/load.h"  // LoadOptions
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Fills the shards (any intervals of any tensors) and texts of `wanted` from the checkpoint at `path`, and sets its
// attributes to the saved ones (to no attributes if the checkpoint records no attributes). The checkpoint may be ours,
// a torch file, a DCP directory, or a safetensors file or Hugging Face directory, which hold only a model. Converts
// dtypes that differ. Local: no rank waits for another, and only the wanted blocks are read. kDataLoss names the
// damaged tensor, file and byte range; kInvalidArgument a tensor whose shape differs; kNotFound a missing one (strict).
absl::Status LoadCheckpoint(const std::string& path, StateDict& wanted, const LoadOptions& options = {});

// The same on every rank of `group`, each with its own `wanted`, which makes sure that all load the same: rank 0
// chooses the step in a directory of checkpoints, and the ranks compare what they have opened, by save and manifest, or
// by a digest of the files (TensorSource::Identity), before any of them reads. `path` may differ between hosts.
// kFailedPrecondition, on every rank, names two ranks that opened different checkpoints, their hosts and both
// identities. The error of any rank is every rank's; then some have filled `wanted`. Collective; blocks.
absl::Status LoadCheckpoint(const std::string& path, StateDict& wanted, ProcessGroup& group,
                            const LoadOptions& options = {});

// The checkpoint that `path` denotes, the same on every rank: in a directory of checkpoints rank 0 finds the newest
// that verifies, by reading it; any other path is returned unchanged. For programs that describe a checkpoint before
// they load it. `skipped`, if not null, gets on rank 0 a sentence for each newer checkpoint that does not verify. The
// error of rank 0 is every rank's. Collective; blocks.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path, ProcessGroup& group,
                                              std::vector<std::string>* skipped = nullptr);

struct DescribeOptions {
  // Leave out the optimizer of a torch file or a DCP directory. It need not be readable then.
  bool model_only = false;

  // LoadOptions::flat_layout.
  std::optional<FlatLayout> flat_layout = {};

  // LoadOptions::map.
  std::vector<TensorRole> map = {};

  // Describe an HDF5 file without following its links to other files. Otherwise a file with such links is refused, and
  // the error names them.
  bool skip_links = false;

  // If not null, gets a sentence for each kind of value that the result lacks or has under another name, and for each
  // guess: what `ckpt convert` notes about its source.
  std::vector<std::string>* notes = nullptr;
};

// The names, shapes and dtypes that a checkpoint holds, with empty shards, its texts, aliases, unit layouts and
// attributes: everything that LoadCheckpoint can be asked for. Reads metadata only.
absl::StatusOr<StateDict> DescribeCheckpoint(const std::string& path, const DescribeOptions& options = {});

// The step number recorded in a checkpoint: in the manifest of ours, by a counter in a torch file or DCP directory.
// kInvalidArgument if there is no such record, as in a safetensors file or in what was converted from it.
// `flat_layout` and `map` as in LoadOptions.
absl::StatusOr<int64_t> CheckpointStep(const std::string& path, const std::optional<FlatLayout>& flat_layout = {},
                                       const std::vector<TensorRole>& map = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CHECKPOINT_H_
