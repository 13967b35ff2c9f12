// SPDX-License-Identifier: Apache-2.0
//
// FilePool: files of one directory, opened when they are first needed, no more at once than a process may have open.
// Thread-safe.
#ifndef FSDP_CHECKPOINT_TORCH_FILE_POOL_H_
#define FSDP_CHECKPOINT_TORCH_FILE_POOL_H_

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/file_system.h"

namespace fsdp {

class FilePool {
 public:
  explicit FilePool(std::string directory) : directory_(std::move(directory)) {}

  // The file `name` of the directory; it stays open as long as the result lives.
  absl::StatusOr<std::shared_ptr<const File>> Open(const std::string& name);

 private:
  const std::string directory_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const File>> open_;  // guarded by mutex_, as order_
  std::deque<std::string> order_;                                       // of opening
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_FILE_POOL_H_
