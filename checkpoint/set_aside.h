// SPDX-License-Identifier: Apache-2.0
//
// SetAside: steps that do not verify and are in the way of a run that continues from an older one. Such a step may be
// all that is left of hours of work, and `ckpt repair` may help, so it is renamed and kept: step-00000060 becomes
// step-00000060.damaged, which no search for steps finds, no retention counts and no sweep removes. Whoever repairs it
// renames it back, or continues from it by its path; whoever does not want it deletes it.
#ifndef FSDP_CHECKPOINT_SET_ASIDE_H_
#define FSDP_CHECKPOINT_SET_ASIDE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct SetAsideStep {
  std::string name;
  int64_t nbytes = 0;  // of its files, also of those that another step links
};

// Renames root/name, durably, to the first name of "NAME.damaged", "NAME.damaged-2", ... that is free, and returns
// that. kNotFound when there is no such step; kUnavailable, naming the process, while another one repairs, overwrites
// or deletes it.
absl::StatusOr<SetAsideStep> SetAsideCheckpoint(FileSystem& files, const std::string& root, const std::string& name);

// Those in `root`, by name; none when there is no `root`.
absl::StatusOr<std::vector<SetAsideStep>> ListSetAside(const std::string& root);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SET_ASIDE_H_
