// SPDX-License-Identifier: Apache-2.0
//
// TorchFile: a file that torch.save wrote, open for reading: the tree of its values, and the place of each storage's
// bytes in the file. Both forms are read: the zip archive, and the sequence of pickles of torch before 1.6. Opening
// reads metadata only. torch_tree.h draws the way from here to a state dict.
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

// Where the bytes of a storage lie: [offset, offset + nbytes) of the file, also if the archive is a slice of it.
struct StoragePlace {
  int64_t offset = 0;
  int64_t nbytes = 0;
  // CRC-32 of the bytes. 0: the file has none (the old form; torch can be asked to leave CRCs out).
  uint32_t crc = 0;
  // The name in the archive, for messages.
  std::string entry;
};

// The metadata of one archive: a whole file, or a slice of a DCP file.
struct TorchArchive {
  TorchTree tree;            // each storage of TorchTree::tensors is placed
  std::string entry_prefix;  // of StoragePlace::entry, before the key of a storage

  // The place of a storage, by its number in TorchTree::tensors.
  StoragePlace place(uint32_t storage) const;
};

// Reads the metadata of an archive. kInvalidArgument names what is refused (a global, a compressed or encrypted entry,
// a big-endian file, TorchScript); kDataLoss what is damaged. With options.verify, the CRC of the pickle is compared.
absl::StatusOr<TorchArchive> ReadTorchArchive(const FileSlice& slice, const TensorSourceOptions& options = {});

// Gives `checksums` the CRC and the range of each storage of `archive` that has a CRC.
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
// It has no CRCs. Errors as ReadTorchArchive's.
absl::StatusOr<TorchArchive> ReadLegacyTorchFile(const FileSlice& slice);

// Immutable once it is open, so any number of threads may read it.
class TorchFile {
 public:
  // The form is recognised by the first four bytes. Errors name the file.
  static absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& path,
                                                         const TensorSourceOptions& options = {});

  const std::string& path() const { return file_->path(); }

  // For reading storages: with options.verify, what is read is compared with their CRCs. The CRCs are taken from
  // archive() by the first call, since a program that only looks at names and shapes needs no table of them.
  const File& payload() const;
  const EntryChecksums& checksums() const { return *checksums_; }
  const TorchArchive& archive() const { return archive_; }
  // The tree's root, which archive() has no longer: a tree is only needed until the state dict is found in it.
  TorchNode TakeRoot() { return std::exchange(archive_.tree.root, TorchNode()); }
  bool is_zip() const { return is_zip_; }

  // The place of the whole storage that tensor `index` of the tree is a view of.
  StoragePlace place(int index) const;
  // Its first byte in the file.
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
