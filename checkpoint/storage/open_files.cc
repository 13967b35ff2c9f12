// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/open_files.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

// The disk is asked without the lock: two threads may both open a file, and one of them is then closed.
absl::StatusOr<OpenFiles::Opened> OpenFiles::Open(const std::string& path) {
  constexpr size_t kMaxOpenFiles = 256;  // well under the customary limit of 1024 descriptors
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = open_.find(path);
    if (at != open_.end()) return at->second;
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(JoinPath(directory_, path)));
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file->Size());
  Opened opened = {std::move(file), nbytes};
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, is_new] = open_.try_emplace(path, opened);
  if (!is_new) return at->second;
  order_.push_back(path);
  if (order_.size() > kMaxOpenFiles) {
    open_.erase(order_.front());  // readers of that file hold a reference, which keeps it open
    order_.pop_front();
  }
  return opened;
}

}  // namespace fsdp
