// SPDX-License-Identifier: Apache-2.0
//
// CheckSharedRoot: all ranks of a job write to one directory. If hosts have different directories of that name, the
// first save fails; a program that calls this before it trains learns it hours earlier.
#ifndef FSDP_CHECKPOINT_NATIVE_SHARED_ROOT_H_
#define FSDP_CHECKPOINT_NATIVE_SHARED_ROOT_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// OK when every rank sees, in its own `root`, a small hidden file that rank 0 makes in its `root` and removes again.
// kFailedPrecondition otherwise, naming the ranks that do not see it and their hosts; or the error of making the file.
// The same result on every rank. `root` must exist on rank 0. Collective; blocks.
absl::Status CheckSharedRoot(FileSystem& files, const std::string& root, ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SHARED_ROOT_H_
