// SPDX-License-Identifier: Apache-2.0
//
// DirectoryLock: lets one process at a time change a directory. The lock is advisory (flock on the directory itself),
// so it leaves no file behind, follows the directory through renames, and is released when its process ends, even by a
// crash. Readers take no lock. On a file system without locks every Take succeeds.
//
//   FSDP_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take("runs/step-00000100"));
#ifndef FSDP_CHECKPOINT_STORAGE_DIRECTORY_LOCK_H_
#define FSDP_CHECKPOINT_STORAGE_DIRECTORY_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

class DirectoryLock {
 public:
  // Does not wait: kUnavailable, naming the holding process, while the lock is held, even by this process. kNotFound
  // when `path` does not exist; kInvalidArgument when it is not a directory.
  static absl::StatusOr<DirectoryLock> Take(const std::string& path);

  // Holds no lock.
  DirectoryLock() = default;
  ~DirectoryLock() { Release(); }
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Does nothing when no lock is held.
  void Release();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_DIRECTORY_LOCK_H_
