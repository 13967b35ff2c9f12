// SPDX-License-Identifier: Apache-2.0
//
// SyncNameOf: the fsync that follows a rename. If it fails, the output is whole and has its name all the same, and a
// caller that only learns of a failed open would make it again.
#ifndef FSDP_CHECKPOINT_STORAGE_DURABLE_NAME_H_
#define FSDP_CHECKPOINT_STORAGE_DURABLE_NAME_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Makes the name `path`, which a rename has just made, durable. An error says that `path` is complete, and what may
// happen to it.
absl::Status SyncNameOf(FileSystem& files, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_DURABLE_NAME_H_
