// SPDX-License-Identifier: Apache-2.0
//
// WriteTorchFile: a state dict as one .pt file that torch.load(weights_only=True) reads.
//
// WriteTorchArchives: the lower layer, which DCP directories also use: one or many torch archives in one file. Tensors
// are pulled block by block, in parallel, with CRCs computed while a block is in the cache; memory is the blocks in
// flight.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/zip/zip_layout.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The contents of one storage: `interval.size()` elements of `element_size` bytes each.
struct TorchStorageSource {
  // Either elements `interval` of this tensor, to be read, whose key must outlive the writing; or the bytes themselves.
  std::variant<const StateKey*, std::string> elements;
  Interval interval;
  int64_t element_size = 1;
};

// All of an archive but its storages and its place: archives of tensors of one dtype and shape share it, since a DCP
// directory has one for each of perhaps a million tensors. Immutable.
class TorchArchiveForm {
 public:
  // `storage_bytes`: of the storages that the pickle names "0", "1", ...
  TorchArchiveForm(std::string pickle, const std::vector<int64_t>& storage_bytes);

 private:
  friend class TorchArchivePlan;
  friend class TorchArchiveWriter;

  std::vector<std::string> texts_;  // the entries before the storages
  std::vector<uint32_t> text_crcs_;
  ZipLayout layout_;
};

// An archive at byte `offset` of a file, laid out but not written: the pickle, and its storages "0", "1", ... Holds
// only the payload of storages with literal bytes.
class TorchArchivePlan {
 public:
  // Storage i of `storages` is the one that the pickle names "i".
  TorchArchivePlan(int64_t offset, std::string pickle, std::vector<TorchStorageSource> storages);
  // The same with an existing form, whose storages have the sizes of `storages`.
  TorchArchivePlan(int64_t offset, std::shared_ptr<const TorchArchiveForm> form,
                   std::vector<TorchStorageSource> storages);

  int64_t offset() const { return offset_; }
  // The offset after the archive, known before any payload.
  int64_t end() const { return offset_ + form_->layout_.nbytes(); }

 private:
  friend class TorchArchiveWriter;

  int64_t offset_;
  std::shared_ptr<const TorchArchiveForm> form_;
  std::vector<TorchStorageSource> storages_;
};

struct TorchWriteOptions {
  // Replace an existing file or directory, by one rename; otherwise kAlreadyExists.
  bool overwrite = false;
  FileSystem* file_system = &PosixFileSystem();
  // Bytes of payload in memory, over all threads.
  int64_t buffer_bytes = int64_t{32} << 20;
  int io_threads = 2;
  // May be empty. Called by one thread at a time.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
  // FormatWriteOptions::count_names of a DCP directory; may be empty.
  std::function<void(int64_t tensors)> count_names = {};
};

// Fills the empty file `file` with `archives`, which are sorted by offset and do not overlap, and syncs it. Blocks
// until the file is on disk. `read` is called by several threads. The options' progress counts the bytes of storages in
// this file. Returns errors of `read` and of the file; the file is then incomplete.
absl::Status WriteTorchArchives(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                                const TorchWriteOptions& options);

// Creates the file `path` from `contents` (keys, dtypes, shapes, texts, aliases; shards are ignored) and `read`. It
// appears whole, by rename of a hidden sibling, or not at all. Equal input gives equal bytes. torch_encoding.h
// describes how the state dict is pickled, and the errors of that.
absl::Status WriteTorchFile(const std::string& path, const StateDict& contents, const PayloadReader& read,
                            const TorchWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_WRITER_H_
