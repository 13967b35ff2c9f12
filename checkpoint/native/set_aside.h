// SPDX-License-Identifier: Apache-2.0
//
// SetAside: quarantine for steps that do not verify. A run that continues from an older step will reach the damaged
// step's number again, so its name must become free; but the damaged step may hold hours of work, and `ckpt repair` may
// recover it. So it is renamed and kept: step-00000060 becomes step-00000060.damaged, which searches for steps,
// retention and cleaning ignore. After a repair, rename it back or continue from it by its path; otherwise delete it by
// hand.
#ifndef FSDP_CHECKPOINT_NATIVE_SET_ASIDE_H_
#define FSDP_CHECKPOINT_NATIVE_SET_ASIDE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct SetAsideStep {
  std::string name;    // its new name in ROOT
  int64_t nbytes = 0;  // of its files, including files that another step links
};

// Renames root/name, durably, to the first free name of "NAME.damaged", "NAME.damaged-2", ... and returns that.
// kNotFound when there is no such step; kFailedPrecondition, with the reason, for a directory that is not a checkpoint
// of this project (ProveLeftover, checkpoint/native/save/checkpoint_proof.h), which keeps its name; kUnavailable,
// naming the process, while another process repairs, overwrites or deletes it.
absl::StatusOr<SetAsideStep> SetAsideCheckpoint(FileSystem& files, const std::string& root, const std::string& name);

// The steps in `root` that were set aside, by name; none when `root` does not exist.
absl::StatusOr<std::vector<SetAsideStep>> ListSetAside(const std::string& root);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SET_ASIDE_H_
