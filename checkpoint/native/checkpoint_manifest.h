// SPDX-License-Identifier: Apache-2.0
//
// ReadCheckpointManifest: the manifest of a checkpoint directory, with errors that also say what a directory without a
// manifest is.
#ifndef FSDP_CHECKPOINT_NATIVE_CHECKPOINT_MANIFEST_H_
#define FSDP_CHECKPOINT_NATIVE_CHECKPOINT_MANIFEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"

namespace fsdp {

// The name of a file in `directory` that only a checkpoint of ours has; empty without one. The error of a directory
// that cannot be listed.
absl::StatusOr<std::string> FindCheckpointFile(const std::string& directory);

// OK when `directory` has a manifest. Without one: kDataLoss, naming a file that is left, or kNotFound.
absl::Status CheckManifestIsThere(const std::string& directory);

// The manifest, which says all that a description of the checkpoint needs. No other file is opened, so this works when
// rank files are missing or damaged. Errors as CheckManifestIsThere and ReadManifest.
absl::StatusOr<Manifest> ReadCheckpointManifest(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_CHECKPOINT_MANIFEST_H_
