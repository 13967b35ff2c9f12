// SPDX-License-Identifier: Apache-2.0
//
// Records: each rank file's description of itself in its dataset /fsdp/record. They are read at the offset that the
// manifest or the writer gives, never through HDF5, so a damaged HDF5 structure does not hide them. FindRecord
// (native/parity/find_record.h) finds one without an offset.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_RECORD_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_RECORD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The minimum that rank 0 needs to know of another rank's file: the place and the digest of its record. The record
// describes everything else.
struct WrittenFile {
  std::string name;
  int64_t nbytes = 0;
  StoredExtent record;  // with digests

  // Names and sizes of the files of earlier saves to which it refers.
  std::vector<std::pair<std::string, int64_t>> links = {};
};

// The WrittenFile of a file that this process wrote; `record` has the extent of the record itself.
WrittenFile Written(const FileRecord& record);

// Reads and verifies the record of `written`, a file of `directory`. files[0] of the result is that file, with the
// extent of the record. kNotFound if the file does not exist; kDataLoss when size, digest or contents are not as the
// writer reported.
absl::StatusOr<FileRecord> ReadRecord(FileSystem& files, const std::string& directory, const WrittenFile& written);

// Reads the record of manifest.files[index] from `file` and compares it with the manifest. OK for a file without a
// record. kDataLoss when the record is damaged, or when the file belongs to another save or another rank.
absl::Status CheckRecord(const File& file, const Manifest& manifest, int index);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_RECORD_H_
