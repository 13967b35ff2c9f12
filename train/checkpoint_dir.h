// SPDX-License-Identifier: Apache-2.0
//
// What a run checks about the directory of its checkpoints before it trains, so that a wrong one fails it immediately
// and not at its first save.
#ifndef FSDP_TRAIN_CHECKPOINT_DIR_H_
#define FSDP_TRAIN_CHECKPOINT_DIR_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// kInvalidArgument if options.parity is too large for the files of `world_size` ranks, each of which writes at most
// one.
absl::Status CheckParity(const TrainOptions& options, int world_size);

// Makes options.checkpoint_dir, if it is given. kInvalidArgument, with the reason, if it cannot be made or written.
absl::Status MakeCheckpointDir(const TrainOptions& options);

// Whether `path` is an entry of `directory`; false if either is empty.
bool IsInDirectory(const std::string& directory, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CHECKPOINT_DIR_H_
