// SPDX-License-Identifier: Apache-2.0
//
// OpenFiles: the files of one directory, opened on first use and kept open, at most 256 of them at the same time: a
// checkpoint may have a file of each process, chunk or tensor. Thread-safe.
#ifndef FSDP_CHECKPOINT_STORAGE_OPEN_FILES_H_
#define FSDP_CHECKPOINT_STORAGE_OPEN_FILES_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class OpenFiles {
 public:
  struct Opened {
    std::shared_ptr<const File> file;
    int64_t nbytes = 0;  // when it was opened
  };

  explicit OpenFiles(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }

  // The file `path`, relative to the directory. It stays open as long as the result exists. Errors of opening it, with
  // its path.
  absl::StatusOr<Opened> Open(const std::string& path);

 private:
  const std::string directory_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, Opened> open_;  // guarded by mutex_
  std::deque<std::string> order_;                  // guarded by mutex_: the names of open_, the oldest first
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_OPEN_FILES_H_
