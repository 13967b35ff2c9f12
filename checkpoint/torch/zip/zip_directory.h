// SPDX-License-Identifier: Apache-2.0
//
// ReadZipDirectory: which entries a zip archive has and where each one's bytes lie in the file, so that stored payload
// is read in place. (libzip hides those places, hence this reader; it believes the central directory only, and that
// only as far as the local headers agree.) zip64 is read. Refused by name: several disks, encryption, duplicate names,
// entries that overlap or lie outside, names that lead elsewhere. Compressed entries are listed; reading one is the
// caller's error.
#ifndef FSDP_CHECKPOINT_TORCH_ZIP_ZIP_DIRECTORY_H_
#define FSDP_CHECKPOINT_TORCH_ZIP_ZIP_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/zip/file_slice.h"

namespace fsdp {

// A larger central directory is refused before it is read; it would list some four million entries.
inline constexpr int64_t kMaxZipDirectoryBytes = int64_t{256} << 20;

// An entry whose ranges lie in the archive and overlap no other entry's.
struct ZipEntry {
  std::string name;

  // The compression method; 0: stored.
  uint16_t method = 0;

  // The CRC-32 of its uncompressed bytes; 0 where the writer left it out.
  uint32_t crc = 0;

  int64_t nbytes = 0;          // of the entry, uncompressed
  int64_t stored_bytes = 0;    // in the archive
  int64_t header_offset = 0;   // of the local header, in the slice
  int64_t payload_offset = 0;  // of its bytes, in the slice

  bool is_stored() const { return method == 0; }
};

// All entries, in the order of the central directory. Reads the end of the archive, the directory, and each local
// header: two small reads for each entry, and no payload. kDataLoss for bytes that are no zip archive or contradict
// each other; kInvalidArgument for archives that are refused; kResourceExhausted for a directory that is too large.
absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(const FileSlice& archive);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_ZIP_DIRECTORY_H_
