// SPDX-License-Identifier: Apache-2.0
//
// RecordsLeft: what is left of a checkpoint that has lost its manifest, as the records of its rank files tell. Nothing
// is believed without its digest.
#ifndef FSDP_CHECKPOINT_REPAIR_RECORDS_LEFT_H_
#define FSDP_CHECKPOINT_REPAIR_RECORDS_LEFT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RecordsLeft {
  // The files that the save wrote and all of whose bytes are as they say, by name. They are of one save: that which
  // most of the files are of.
  std::map<std::string, FileRecord> records;

  // Files of earlier saves that it links, as the records describe them; those of a lost record, as they describe
  // themselves.
  std::map<std::string, StoredFile> linked;

  // The parity files that there were, as the records say; where none does, as the names of those that are left say.
  std::vector<std::string> parity;

  // Why a file of those above cannot be used. Of a parity file it is not known whether it is damaged, only whether it
  // is there.
  std::map<std::string, absl::Status> damaged;

  int writers = 0;  // 0 when no file tells
};

// "rank-00003-of-00008.h5", or the name under which another save's is linked.
bool IsRankFileName(const std::string& name);

// Reads every rank file in `directory`.
absl::StatusOr<RecordsLeft> FindRecordsLeft(FileSystem& files, const std::string& directory, ThreadPool& pool);

// The record of the rank file `name` in `directory`, all of whose bytes are as it says; kDataLoss otherwise.
absl::StatusOr<FileRecord> RecordOf(FileSystem& files, const std::string& directory, const std::string& name,
                                    ThreadPool& pool);

// OK when `directory` has a file `name`, whatever is in it; kDataLoss, beginning with its name, otherwise.
absl::Status CheckPresent(FileSystem& files, const std::string& directory, const std::string& name);

// OK when the file `stored` in `directory` is as it is described; kDataLoss, beginning with its name, otherwise.
absl::Status CheckStoredFile(FileSystem& files, const std::string& directory, const StoredFile& stored,
                             ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_REPAIR_RECORDS_LEFT_H_
