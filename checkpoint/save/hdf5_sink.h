// SPDX-License-Identifier: Apache-2.0
//
// WriteCheckpointDirectory: writes a whole checkpoint in the project's own format from one process, pulling payload
// piece by piece from a callback, so that memory stays bounded however large the model is. What ckpt convert calls;
// SaveCheckpoint is the form for many ranks that hold the tensors in memory. Both use the same layout and commit code.
#ifndef FSDP_CHECKPOINT_SAVE_HDF5_SINK_H_
#define FSDP_CHECKPOINT_SAVE_HDF5_SINK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct CheckpointDirectoryOptions {
  StateDictType type = StateDictType::kFull;
  int world_size = 1;  // rank files of a SHARDED or LOCAL one
  int64_t step = 0;
  int parity = 0;                           // parity files beside them; see SaveOptions
  bool overwrite = false;                   // replace an existing DST by exchange; otherwise kAlreadyExists
  int64_t max_memory = int64_t{512} << 20;  // bytes of payload buffers
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
  FileSystem* file_system = &PosixFileSystem();                                // tests inject faults
};

// Makes `path` (the checkpoint directory itself) from `contents` (keys, dtypes, shapes, texts, aliases, units; shards
// are ignored) and `read`. For LOCAL, contents without units count as one unit. It appears whole, by rename of a hidden
// sibling, or not at all.
absl::Status WriteCheckpointDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                      const CheckpointDirectoryOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_HDF5_SINK_H_
