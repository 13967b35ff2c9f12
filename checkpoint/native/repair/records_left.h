// SPDX-License-Identifier: Apache-2.0
//
// RecordsLeft: the undamaged files of a checkpoint that has lost its manifest, according to the records of its rank
// files. Every byte of a rank file is compared with a digest before the file counts as undamaged.
#ifndef FSDP_CHECKPOINT_NATIVE_REPAIR_RECORDS_LEFT_H_
#define FSDP_CHECKPOINT_NATIVE_REPAIR_RECORDS_LEFT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RecordsLeft {
  // By name: the records of the undamaged rank files that the save itself wrote. All belong to one save: the one to
  // which most files in the directory belong.
  std::map<std::string, FileRecord> records;

  // By name: the files of earlier saves that the save links, as its records describe them. If the record that links a
  // file is lost, as the file's own record describes it.
  std::map<std::string, StoredFile> linked;

  // The names of the parity files that the save made: their number is in the records, or, without any record, in the
  // names of the parity files in the directory.
  std::vector<std::string> parity;

  // By name: why a file cannot be used. A parity file is here only if it is missing; damage in one cannot be detected.
  std::map<std::string, absl::Status> damaged;

  int writers = 0;  // rank files of the save; 0 if unknown
};

// Reads and verifies every rank file in `directory`. The error of a file that this machine cannot read (IsUnread): it
// may be whole. So in the functions below.
absl::StatusOr<RecordsLeft> FindRecordsLeft(FileSystem& files, const std::string& directory, ThreadPool& pool);

// The record of the rank file `name` in `directory`. kDataLoss unless all bytes of the file match it.
absl::StatusOr<FileRecord> RecordOf(FileSystem& files, const std::string& directory, const std::string& name,
                                    ThreadPool& pool);

// OK when `directory` has a file `name`, with any contents; kDataLoss, beginning with the name, otherwise.
absl::Status CheckPresent(FileSystem& files, const std::string& directory, const std::string& name);

// OK when the file `stored` in `directory` has the described size and digests; kDataLoss, beginning with its name,
// otherwise.
absl::Status CheckStoredFile(FileSystem& files, const std::string& directory, const StoredFile& stored,
                             ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_REPAIR_RECORDS_LEFT_H_
