// SPDX-License-Identifier: Apache-2.0
//
// TorchFile: a file that torch.save wrote, open for reading: the tree of its values, and the position of each storage's
// bytes in the file. Both forms are supported: the zip archive, and the sequence of pickles of torch before 1.6.
// Opening reads only metadata. torch_tree.h draws the path from here to a state dict.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_FILE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_FILE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The position of a storage's bytes: [offset, offset + nbytes) of the file, also if the archive is a slice of it.
struct StoragePlace {
  int64_t offset = 0;
  int64_t nbytes = 0;
  // CRC-32 of the bytes. 0: the file does not have it (the old form; torch can be configured to leave CRCs out).
  uint32_t crc = 0;
  // The name in the archive, for messages.
  std::string entry;
};

// The metadata of one archive: a whole file, or a slice of a DCP file.
struct TorchArchive {
  TorchTree tree;            // each storage of TorchTree::tensors has its offset
  std::string entry_prefix;  // of StoragePlace::entry, before the key of a storage
  std::string folder;  // of the entries: the stem of the name under which it was saved, or "archive"; may be empty

  // The place of a storage, by its number in TorchTree::tensors.
  StoragePlace place(uint32_t storage) const;
};

// The fate of a file with one rank's parts of DTensors: only a reader that joins them with the others may have it.
enum class TorchShards : uint8_t { kRefused, kAllowed };

// Reads the metadata of an archive. kInvalidArgument names an unsupported feature (a global, a compressed or encrypted
// entry, a big-endian file, TorchScript); kDataLoss the damage. With options.verify, compares the CRC of the pickle.
absl::StatusOr<TorchArchive> ReadTorchArchive(const FileSlice& slice, const TensorSourceOptions& options = {},
                                              TorchShards shards = TorchShards::kRefused);

// Adds the CRC and the range of each storage of `archive` that has a CRC to `checksums`.
void ExpectStorages(const TorchArchive& archive, EntryChecksums& checksums);

// The storages of an archive, which must outlive this.
class StorageTable final : public EntryTable {
 public:
  explicit StorageTable(const TorchArchive& archive) : archive_(archive) {}

  size_t size() const override { return archive_.tree.tensors.storage_count(); }
  Interval range(size_t i) const override;
  uint32_t crc(size_t i) const override { return archive_.tree.tensors.storage_crc(static_cast<uint32_t>(i)); }
  std::string name(size_t i) const override { return archive_.place(static_cast<uint32_t>(i)).entry; }
  bool has_crc(size_t i) const override { return crc(i) != 0; }

 private:
  const TorchArchive& archive_;
};

// Reads the metadata of a file of the form before 1.6: at most its first 256 MiB, and the length before each storage.
// Such a file has no CRCs. Errors as ReadTorchArchive.
absl::StatusOr<TorchArchive> ReadLegacyTorchFile(const FileSlice& slice, TorchShards shards = TorchShards::kRefused);

// True if the torch file `path` has DTensors, as far as its first bytes show; false for a file that cannot be read.
bool HasDTensors(const std::string& path);

// Immutable after Open, so any number of threads may read it.
class TorchFile {
 public:
  // The first four bytes determine the form. Errors name the file.
  static absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& path,
                                                         const TensorSourceOptions& options = {});

  const std::string& path() const { return file_->path(); }

  // For reading storages: with options.verify, the bytes are compared with their CRCs. The first call takes the CRCs
  // from archive(), because a program that reads only names and shapes does not need a table of them.
  const File& payload() const;
  const EntryChecksums& checksums() const { return *checksums_; }
  const TorchArchive& archive() const { return archive_; }
  // Moves the tree's root out of archive(): a tree is only needed until the state dict is found in it.
  TorchNode TakeRoot() { return std::exchange(archive_.tree.root, TorchNode()); }
  bool is_zip() const { return is_zip_; }

  // The position of the whole storage of which tensor `index` of the tree is a view.
  StoragePlace place(int index) const;
  // The offset in the file of that storage's first byte.
  int64_t offset(int index) const;

 private:
  explicit TorchFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  std::unique_ptr<File> file_;
  bool verify_ = false;
  mutable std::once_flag expected_;
  const std::shared_ptr<EntryChecksums> checksums_ = std::make_shared<EntryChecksums>();
  TorchArchive archive_;
  const StorageTable storages_{archive_};
  bool is_zip_ = true;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_FILE_H_
