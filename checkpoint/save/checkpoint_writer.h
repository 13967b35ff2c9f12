// SPDX-License-Identifier: Apache-2.0
//
// The two files that make rank files a checkpoint: checkpoint.h5, which shows whole tensors, and the manifest. Shared
// by SaveCheckpoint and WriteCheckpointDirectory.
#ifndef FSDP_CHECKPOINT_SAVE_CHECKPOINT_WRITER_H_
#define FSDP_CHECKPOINT_SAVE_CHECKPOINT_WRITER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/tree_file.h"

namespace fsdp {

// 32 hexadecimal digits, another in every save.
std::string NewSaveId();

// checkpoint.h5 of rank files.
class ShardedIndex {
 public:
  // Lays out what shows the tensors of the rank files that `records` describe, digests not asked for: so this may come
  // before these are written. `texts` are those of the state dict, and `identity` says what all files share. kDataLoss
  // when a tensor is not covered exactly once; kFailedPrecondition when ranks disagree about one.
  static absl::StatusOr<std::unique_ptr<const ShardedIndex>> Create(const std::vector<Manifest>& records,
                                                                    std::vector<TreeFile::Text> texts,
                                                                    const Manifest& identity);
  ShardedIndex(const ShardedIndex&) = delete;
  ShardedIndex& operator=(const ShardedIndex&) = delete;

  // Writes the file beside the rank files, in `directory`; returns the manifest of the whole. `records` are those of
  // Create with their digests.
  absl::StatusOr<Manifest> Write(FileSystem& files, const std::string& directory, const std::vector<Manifest>& records,
                                 ThreadPool& pool) const;

 private:
  ShardedIndex() = default;

  TreeFile tree_;
  Manifest manifest_;  // of the rank files
  std::optional<LaidOutFile> file_;
};

// Both.
absl::StatusOr<Manifest> WriteShardedIndex(FileSystem& files, const std::string& directory,
                                           const std::vector<Manifest>& records, std::vector<TreeFile::Text> texts,
                                           const Manifest& identity, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_CHECKPOINT_WRITER_H_
