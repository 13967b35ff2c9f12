// SPDX-License-Identifier: Apache-2.0
//
// TorchFile: a file that torch.save wrote, open for reading: the tree of what it holds, and where each storage's bytes
// lie in the file. Both of its forms are read: the zip archive, and the sequence of pickles that torch wrote
// before 1.6. Opening reads metadata only.
#ifndef FSDP_CHECKPOINT_TORCH_PT_TORCH_FILE_H_
#define FSDP_CHECKPOINT_TORCH_PT_TORCH_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/torch/state/torch_tree.h"
#include "fsdp/checkpoint/torch/zip/entry_checksums.h"
#include "fsdp/checkpoint/torch/zip/file_slice.h"

namespace fsdp {

// Where the bytes of a storage lie.
struct StoragePlace {
  int64_t offset = 0;  // in the file
  int64_t nbytes = 0;
  uint32_t crc = 0;   // CRC-32 of the bytes; 0 where none was written
  std::string entry;  // of the archive, for messages
};

// What one archive holds: a whole file, or a slice of one.
struct TorchArchive {
  TorchTree tree;
  absl::flat_hash_map<std::string, StoragePlace> storages;  // by key; every storage of a tensor of the tree is there
};

// Reads the metadata of an archive. kInvalidArgument names what is refused (a global, a compressed or encrypted entry,
// a big-endian file, TorchScript); kDataLoss what is damaged. With options.verify, the CRC of the pickle is compared.
absl::StatusOr<TorchArchive> ReadTorchArchive(const FileSlice& slice, const TensorSourceOptions& options = {});

// What `archive` says of the CRCs of its storages, of which none is written as 0.
void ExpectStorages(const TorchArchive& archive, EntryChecksums& checksums);

// The same for the form before 1.6.
absl::StatusOr<TorchArchive> ReadLegacyTorchFile(const FileSlice& slice);

class TorchFile {
 public:
  // Errors name the file.
  static absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& path,
                                                         const TensorSourceOptions& options = {});

  // Whoever reads storages from it has their CRCs compared.
  const File& file() const { return *file_; }
  const EntryChecksums& checksums() const { return *checksums_; }
  const TorchArchive& archive() const { return archive_; }
  bool is_zip() const { return is_zip_; }

  // The place of the storage of tensor `index` of the tree.
  const StoragePlace& place(int index) const;

 private:
  explicit TorchFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  std::unique_ptr<File> file_;
  const std::shared_ptr<EntryChecksums> checksums_ = std::make_shared<EntryChecksums>();
  TorchArchive archive_;
  bool is_zip_ = true;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_TORCH_FILE_H_
