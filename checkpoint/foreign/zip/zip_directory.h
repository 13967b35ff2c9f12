// SPDX-License-Identifier: Apache-2.0
//
// ReadZipDirectory: the entries of a zip archive and the position of each one's bytes in the file, so that stored
// payload is read in place. (libzip hides those positions, hence this reader; it trusts only the central directory, and
// only as far as the local headers agree.) Reads zip64. Refuses by name: several disks, encryption, duplicate names,
// entries that overlap or are outside, names that lead out of the folder. Compressed entries are listed; reading one as
// stored is the caller's error.
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_DIRECTORY_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"

namespace fsdp {

// A larger central directory is refused before it is read; it would list some four million entries.
inline constexpr int64_t kMaxZipDirectoryBytes = int64_t{256} << 20;

// An entry whose ranges are inside the archive and do not overlap any other entry's.
struct ZipEntry {
  std::string name;

  // The compression method; 0: stored.
  uint16_t method = 0;

  // The CRC-32 of its uncompressed bytes; 0 if the writer left it out.
  uint32_t crc = 0;

  int64_t nbytes = 0;          // of the entry, uncompressed
  int64_t stored_bytes = 0;    // in the archive
  int64_t header_offset = 0;   // of the local header, in the slice
  int64_t payload_offset = 0;  // of its bytes, in the slice

  bool is_stored() const { return method == 0; }
};

// The entries of an archive, packed into about 60 bytes each: an archive of torch has one for each tensor.
class ZipDirectory {
 public:
  // Errors as ReadZipDirectory.
  static absl::StatusOr<ZipDirectory> Read(const FileSlice& archive);

  // In the order of the central directory.
  size_t size() const { return entries_.size(); }
  // Valid until the directory is moved or destroyed.
  std::string_view name(size_t i) const;
  ZipEntry operator[](size_t i) const;

  // The entry of that name; nullopt if it does not exist. Logarithmic time.
  std::optional<ZipEntry> Find(std::string_view name) const;

 private:
  struct Entry {
    uint32_t name = 0;  // its first byte in names_
    uint32_t crc = 0;
    uint16_t name_bytes = 0;
    uint16_t method = 0;
    uint32_t by_name = 0;  // unrelated to this entry: the entry at this index in the order of names
    int64_t nbytes = 0;
    int64_t stored_bytes = 0;
    int64_t header_offset = 0;
    int64_t payload_offset = 0;
  };

  std::vector<Entry> entries_;
  std::string names_;
};

// OK for an entry name that every reader here accepts: at most 65535 bytes, and not a path that leads out of a folder.
// Otherwise kInvalidArgument with the name.
absl::Status CheckZipEntryName(std::string_view name);

// All entries, in the order of the central directory. Reads the end of the archive, the directory, and each local
// header: two small reads for each entry, and no payload. kDataLoss for bytes that are not a zip archive or contradict
// each other; kInvalidArgument for archives that are refused; kResourceExhausted for a directory that is too large.
absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(const FileSlice& archive);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_DIRECTORY_H_
