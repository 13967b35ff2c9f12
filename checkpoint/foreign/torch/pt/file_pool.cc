// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

// Closes the oldest file first (FIFO): loading reads the files of ranks one after the other, for which FIFO and LRU are
// equal, and FIFO needs no bookkeeping for each read.
absl::StatusOr<std::shared_ptr<const File>> FilePool::Open(const std::string& name) {
  constexpr size_t kMaxOpenFiles = 256;  // well under the customary limit of 1024 descriptors
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = open_.find(name);
  if (at != open_.end()) return at->second;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, PosixFileSystem().Open(JoinPath(directory_, name)));
  // Opening an archive of a small tensor takes fifteen reads within a kilobyte.
  std::unique_ptr<File> file = std::make_unique<NearbyReads>(std::move(opened));
  if (order_.size() == kMaxOpenFiles) {
    open_.erase(order_.front());  // readers of that file hold a reference, which keeps it open
    order_.pop_front();
  }
  order_.push_back(name);
  // The CRCs outlive the file: a reopened file keeps the results of earlier reads.
  if (options_.verify) file = std::make_unique<ChecksummedFile>(std::move(file), ChecksumsOf(name));
  return open_[name] = std::move(file);
}

std::shared_ptr<EntryChecksums> FilePool::ChecksumsOf(const std::string& name) {
  // Shared with the ChecksummedFile, which a reader may still hold when the pool has dropped it.
  std::shared_ptr<EntryChecksums>& checksums = checksums_[name];
  if (checksums == nullptr) checksums = std::make_shared<EntryChecksums>();
  return checksums;
}

void FilePool::Expect(const std::string& name, const TorchArchive& archive) {
  if (!options_.verify) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ExpectStorages(archive, *ChecksumsOf(name));
}

bool FilePool::has_checksums() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(checksums_.begin(), checksums_.end(),
                     [](const auto& of_file) { return !of_file.second->empty(); });
}

// Reads without holding the lock, because Open takes it and other threads may still be reading.
absl::Status FilePool::VerifyRest() {
  std::map<std::string, std::vector<Interval>> missing;  // sorted, so that the same damage gives the same error
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, checksums] : checksums_) missing[name] = checksums->Missing();
  }
  for (const auto& [name, ranges] : missing) {
    if (ranges.empty()) continue;
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, Open(name));
    const absl::Status status = ReadForChecksums(*file, ranges);
    if (!status.ok()) {
      return Annotate(status, JoinPath(directory_, name));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
