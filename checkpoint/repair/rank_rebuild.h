// SPDX-License-Identifier: Apache-2.0
//
// RebuildRankFiles: lost and damaged rank files of a checkpoint that has lost its manifest, made from the others and
// the parity files. Nobody knows which parity files are damaged then, so choices of them are tried until one makes
// files that are as their own records say.
#ifndef FSDP_CHECKPOINT_REPAIR_RANK_REBUILD_H_
#define FSDP_CHECKPOINT_REPAIR_RANK_REBUILD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/repair/rebuilt_files.h"
#include "fsdp/checkpoint/repair/records_left.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Makes every rank file that `left.damaged` names, linked ones too, in `rebuilt`, and adds their records to
// `left.records`. Returns the names of the parity files that it took. kDataLoss when there are fewer of them than files
// to make, or when no choice is right. `directory` is the checkpoint.
absl::StatusOr<std::vector<std::string>> RebuildRankFiles(FileSystem& files, const std::string& directory,
                                                          RecordsLeft& left, RebuiltFiles& rebuilt, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_REPAIR_RANK_REBUILD_H_
