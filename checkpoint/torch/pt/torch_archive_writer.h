// SPDX-License-Identifier: Apache-2.0
//
// WriteTorchArchives: one or many torch archives into one file, their tensors pulled block by block, in parallel, with
// CRCs computed while a block is hot. Memory is that of the blocks in flight.
#ifndef FSDP_CHECKPOINT_TORCH_PT_TORCH_ARCHIVE_WRITER_H_
#define FSDP_CHECKPOINT_TORCH_PT_TORCH_ARCHIVE_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/torch/zip/zip_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The contents of one storage: `interval.size()` elements of `element_size` bytes each.
struct TorchStorageSource {
  std::variant<StateKey, std::string> elements;  // elements `interval` of this tensor, to be read; or these bytes
  Interval interval;
  int64_t element_size = 1;
};

// An archive at `offset` of a file: the pickle, and its storages "0", "1", ...
class TorchArchivePlan {
 public:
  TorchArchivePlan(int64_t offset, std::string pickle, std::vector<TorchStorageSource> storages);

  int64_t offset() const { return offset_; }
  int64_t end() const { return offset_ + layout_.nbytes(); }

 private:
  friend class TorchArchiveWriter;

  int64_t offset_;
  std::vector<std::string> texts_;  // the entries before the storages
  std::vector<uint32_t> text_crcs_;
  std::vector<TorchStorageSource> storages_;
  ZipLayout layout_;
};

struct TorchWriteOptions {
  bool overwrite = false;  // replace what has the name, at once and whole; otherwise kAlreadyExists
  FileSystem* file_system = &PosixFileSystem();
  int64_t buffer_bytes = int64_t{32} << 20;  // of payload in memory, over all threads
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress =
      {};  // may be empty; called by one thread at a time
};

// Fills the empty file `file` with `archives`, which do not overlap, and syncs it. The options' progress counts the
// bytes of storages in this file.
absl::Status WriteTorchArchives(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                                const TorchWriteOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_TORCH_ARCHIVE_WRITER_H_
