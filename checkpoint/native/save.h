// SPDX-License-Identifier: Apache-2.0
//
// SaveCheckpoint on a file system of the caller's choice: for tests that inject faults.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/save/save_options.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

absl::StatusOr<std::string> SaveCheckpointOn(FileSystem& files, const StateDict& state, const std::string& root,
                                             int64_t step, ProcessGroup& group, const SaveOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_H_
