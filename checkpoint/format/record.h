// SPDX-License-Identifier: Apache-2.0
//
// Records: what each rank file says of itself in its dataset /fsdp/record. They are read where the manifest, or the
// writer, says that they are, never through HDF5.
#ifndef FSDP_CHECKPOINT_FORMAT_RECORD_H_
#define FSDP_CHECKPOINT_FORMAT_RECORD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// A rank file, named by as little as is needed to find and believe its record, which describes the rest.
struct WrittenFile {
  std::string name;
  int64_t nbytes = 0;
  StoredExtent record;
  std::vector<std::pair<std::string, int64_t>> links;  // names and sizes of files of earlier saves that it refers to
};

// The first file of `record`, made by a writer, and the files that it links.
WrittenFile Written(const FileRecord& record);

// Reads the record of `written`, a file of `directory`; the result's first file is that one and includes the record's
// own extent. kNotFound when there is no such file; kDataLoss when it is not as its writer left it.
absl::StatusOr<FileRecord> ReadRecord(FileSystem& files, const std::string& directory, const WrittenFile& written);

// Reads the record of manifest.files[index] from `file` and compares the two. OK for a file without a record. kDataLoss
// when the record is damaged, or the file another save's or another rank's.
absl::Status CheckRecord(const File& file, const Manifest& manifest, int index);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMAT_RECORD_H_
