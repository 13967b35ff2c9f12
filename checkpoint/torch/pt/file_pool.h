// SPDX-License-Identifier: Apache-2.0
//
// FilePool: files of one directory, opened when they are first needed, no more at once than a process may have open;
// and the CRCs of the archives in them. Thread-safe.
#ifndef FSDP_CHECKPOINT_TORCH_PT_FILE_POOL_H_
#define FSDP_CHECKPOINT_TORCH_PT_FILE_POOL_H_

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/torch/pt/torch_file.h"
#include "fsdp/checkpoint/torch/zip/entry_checksums.h"

namespace fsdp {

class FilePool {
 public:
  FilePool(std::string directory, const TensorSourceOptions& options)
      : directory_(std::move(directory)), options_(options) {}

  // The file `name` of the directory; it stays open as long as the result lives.
  absl::StatusOr<std::shared_ptr<const File>> Open(const std::string& name);

  // From now on the CRCs of the storages of `archive`, which lies in the file `name`, are compared as they are read.
  void Expect(const std::string& name, const TorchArchive& archive);

  bool has_checksums();

  // TensorSource::VerifyRest.
  absl::Status VerifyRest();

 private:
  // Of the file `name`; null where nothing is verified.
  std::shared_ptr<EntryChecksums> ChecksumsOf(const std::string& name);

  const std::string directory_;
  const TensorSourceOptions options_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const File>> open_;           // guarded by mutex_, as order_
  std::deque<std::string> order_;                                                // of opening
  absl::flat_hash_map<std::string, std::shared_ptr<EntryChecksums>> checksums_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_FILE_POOL_H_
