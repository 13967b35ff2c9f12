// SPDX-License-Identifier: Apache-2.0
//
// ShardedIndex: the checkpoint.h5 of a checkpoint of rank files. It has no elements of tensors: each tensor is a
// virtual dataset that shows the parts in the rank files as one array, so that every HDF5 tool reads whole tensors. The
// texts are copied into it.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_SHARDED_INDEX_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_SHARDED_INDEX_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class ShardedIndex {
 public:
  // Lays the file out for the rank files that `records` describe, in the order of the writers. Digests in `records` are
  // ignored, so the layout can be made before the rank files are written. `texts` are the state dict's. kDataLoss when
  // the records do not cover a tensor exactly once; kFailedPrecondition when they disagree about one.
  static absl::StatusOr<std::unique_ptr<const ShardedIndex>> Create(const SaveIdentity& save,
                                                                    const std::vector<FlatUnitLayout>& units,
                                                                    const std::vector<FileRecord>& records,
                                                                    std::vector<TreeFile::Text> texts);
  ShardedIndex(const ShardedIndex&) = delete;
  ShardedIndex& operator=(const ShardedIndex&) = delete;

  // Writes and fsyncs the file in `directory`, next to the rank files. Returns the manifest of all files, without
  // parity. `records` are the same as for Create, now with digests.
  absl::StatusOr<Manifest> Write(FileSystem& files, const std::string& directory,
                                 const std::vector<FileRecord>& records, ThreadPool& pool) const;

 private:
  ShardedIndex() = default;

  TreeFile tree_;
  Manifest manifest_;  // of the rank files
  std::optional<LaidOutFile> file_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_SHARDED_INDEX_H_
