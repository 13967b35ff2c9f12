// SPDX-License-Identifier: Apache-2.0
//
// PathKind: what lies at a path, recognised from its content. Looks at names and first bytes only; opening it is what
// checks it.
#ifndef FSDP_CHECKPOINT_PATH_KIND_H_
#define FSDP_CHECKPOINT_PATH_KIND_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

enum class PathKind : uint8_t {
  kCheckpoint,  // a directory with a manifest
  kRoot,        // a directory of step-* directories
  kSafetensorsFile,
  kHdf5File,              // one HDF5 file, such as a checkpoint.h5 without its manifest
  kHuggingFaceDirectory,  // model.safetensors, or an index of several
};

// kNotFound when nothing is there; kUnimplemented for torch files and DCP directories; kDataLoss for a checkpoint
// directory without its manifest; kInvalidArgument for anything else, saying what was expected.
absl::StatusOr<PathKind> RecognisePath(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_PATH_KIND_H_
