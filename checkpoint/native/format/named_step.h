// SPDX-License-Identifier: Apache-2.0
//
// The names of checkpoints. A program may give a checkpoint a name of its own (checkpoint-500, epoch=3-step=100.ckpt)
// in place of StepName. The manifest then records the name: a directory is a step of its ROOT if it has the name under
// which it was saved. So a copy under another name stays what its owner made of it, and no retention deletes it.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_NAMED_STEP_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_NAMED_STEP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// OK if a checkpoint of step `step` may be called `name`: by StepName(step), or by up to 200 bytes that are one part of
// a path, do not begin with a dot, and mean nothing else in a ROOT: not another step, a step that was set aside, or a
// file of a checkpoint. kInvalidArgument with the rule that `name` breaks.
absl::Status CheckCheckpointName(const std::string& name, int64_t step);

// The step of the checkpoint directory/name, if its manifest records `name` as its own; nothing for a name that
// StepName makes, and for everything else. Reads only the first few KiB of the manifest and checks no digest: for
// listing. Errors of the disk unchanged, kPermissionDenied too, since a step that cannot be read is not one that is not
// there.
absl::StatusOr<std::optional<int64_t>> ReadNamedStep(FileSystem& files, const std::string& directory,
                                                     const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_NAMED_STEP_H_
