// SPDX-License-Identifier: Apache-2.0
//
// FilePool: the files of one directory, opened on first use, and never more of them at the same time than a process may
// have open: a DCP directory has a file of each rank, which can be thousands. It also keeps the CRCs of the archives in
// them, which outlive the open files. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_FILE_POOL_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_FILE_POOL_H_

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Owns the files; results share ownership.
class FilePool {
 public:
  FilePool(std::string directory, const TensorSourceOptions& options)
      : directory_(std::move(directory)), options_(options) {}

  // The file `name` of the directory; it stays open as long as the result exists. With options.verify, reads from it
  // are compared with the CRCs passed to Expect. Errors of opening the file, with its path.
  absl::StatusOr<std::shared_ptr<const File>> Open(const std::string& name);

  // From now on compares the storages of `archive`, which is inside the file `name`, with their CRCs as they are read.
  // Does nothing without options.verify. An archive may be reported more than once.
  void Expect(const std::string& name, const TorchArchive& archive);

  // TensorSource::has_checksums and CoveringChecksums::VerifyRest, for the files that were opened.
  bool has_checksums();

  absl::Status VerifyRest();

 private:
  // The CRCs of the file `name`, created on first use. Requires mutex_.
  std::shared_ptr<EntryChecksums> ChecksumsOf(const std::string& name);

  const std::string directory_;
  const TensorSourceOptions options_;
  std::mutex mutex_;
  // All guarded by mutex_. Keyed by file name; order_ has the names of open_ in the order in which they were opened.
  absl::flat_hash_map<std::string, std::shared_ptr<const File>> open_;
  std::deque<std::string> order_;
  absl::flat_hash_map<std::string, std::shared_ptr<EntryChecksums>> checksums_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_FILE_POOL_H_
