// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/file_pool.h"

#include <utility>

#include "base/status_macros.h"
#include "checkpoint/format/file_names.h"

namespace fsdp {

absl::StatusOr<std::shared_ptr<const File>> FilePool::Open(const std::string& name) {
  constexpr size_t kMaxOpenFiles = 256;  // well under the customary limit of 1024 descriptors
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = open_.find(name);
  if (at != open_.end()) return at->second;
  ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(JoinPath(directory_, name)));
  if (order_.size() == kMaxOpenFiles) {
    open_.erase(order_.front());  // who still reads from it has a reference
    order_.pop_front();
  }
  order_.push_back(name);
  return open_[name] = std::move(file);
}

}  // namespace fsdp
