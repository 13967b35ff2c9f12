// SPDX-License-Identifier: Apache-2.0
//
// RebuildRankFiles: rebuilds lost and damaged rank files of a checkpoint that has lost its manifest, from the other
// rank files and the parity files. The digests of parity files were in the manifest, so damage in them cannot be
// detected: choices of parity files are tried until one yields rank files that match their own records.
#ifndef FSDP_CHECKPOINT_NATIVE_REPAIR_RANK_REBUILD_H_
#define FSDP_CHECKPOINT_NATIVE_REPAIR_RANK_REBUILD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/repair/rebuilt_files.h"
#include "fsdp/checkpoint/native/repair/records_left.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Rebuilds every rank file that `left.damaged` names, including linked ones, in `rebuilt`, and adds their records to
// `left.records`. Returns the names of the parity files that were used. kDataLoss when there are fewer parity files
// than files to rebuild, or when no choice yields files that verify. `directory` is the checkpoint. Each choice reads
// all files.
absl::StatusOr<std::vector<std::string>> RebuildRankFiles(FileSystem& files, const std::string& directory,
                                                          RecordsLeft& left, RebuiltFiles& rebuilt, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_REPAIR_RANK_REBUILD_H_
