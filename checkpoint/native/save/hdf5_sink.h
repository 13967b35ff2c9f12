// SPDX-License-Identifier: Apache-2.0
//
// WriteCheckpointDirectory, WriteHdf5File: one process writes a whole checkpoint in the project's own format, or as one
// HDF5 file for other programs. It pulls payload block by block from a callback, so memory stays bounded for models of
// any size. `ckpt convert` calls it. SaveCheckpoint is its counterpart for the ranks of a job, which hold the tensors
// in memory; both write the same bodies (checkpoint_body.h) and commit in the same way.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_HDF5_SINK_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_HDF5_SINK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The time in which HDF5 lays out one tensor, as FormatWriter::NameWork; and of all files of a checkpoint, with the
// index and the manifest.
inline constexpr int64_t kLayoutWork = 3;
int64_t CheckpointNameWork(StateDictType type, int world_size);

struct CheckpointDirectoryOptions {
  StateDictType type = StateDictType::kFull;
  int world_size = 1;                       // number of rank files, for SHARDED and LOCAL
  int64_t step = 0;                         // -1: unknown, which the manifest then says
  int parity = 0;                           // number of parity files; see SaveOptions
  bool overwrite = false;                   // replace an existing checkpoint by exchange; otherwise kAlreadyExists
  int64_t max_memory = int64_t{512} << 20;  // bytes of payload buffers; at least kBlockBytes
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
  // FormatWriteOptions::count_names: kLayoutWork for each tensor of each rank file, and the rest at the end, up to
  // NameWork. May be empty.
  std::function<void(int64_t tensors)> count_names = {};
  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

// Makes the checkpoint directory `path` from `contents` (keys, dtypes, shapes, texts, aliases, units; shards are
// ignored) and `read`, which is called from several threads. For LOCAL, contents without units count as one unit. The
// directory appears complete, by a rename of a hidden sibling, or not at all. kInvalidArgument for options or names
// that are invalid; kAlreadyExists as above; an error of `read` is returned unchanged.
absl::Status WriteCheckpointDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                      const CheckpointDirectoryOptions& options);

// Makes the HDF5 file `path`, which needs no other file: the tree of a FULL checkpoint.h5 without a manifest and
// digests, with the dtype and name of each dataset as attributes, and in the order of people: "h.2" before "h.10". Of
// `options` type, world_size and parity are not used. Otherwise as WriteCheckpointDirectory.
absl::Status WriteHdf5File(const std::string& path, const StateDict& contents, const PayloadReader& read,
                           const CheckpointDirectoryOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_HDF5_SINK_H_
