// SPDX-License-Identifier: Apache-2.0
//
// PathKind: what lies at a path, recognised from its content. Looks at names and first bytes only; opening it is what
// checks it.
#ifndef FSDP_CHECKPOINT_FORMATS_PATH_KIND_H_
#define FSDP_CHECKPOINT_FORMATS_PATH_KIND_H_

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
  kTorchFile,             // torch.save's, a zip archive or the older form
  kTorchDirectory,        // pytorch_model.bin, or an index of several
  kDcpDirectory,          // torch.distributed.checkpoint's
};

// kNotFound when nothing is there; kDataLoss for a checkpoint directory without its manifest; kInvalidArgument for
// anything else, saying what was expected.
absl::StatusOr<PathKind> RecognisePath(const std::string& path);

// "hdf5", "hdf5 file", "safetensors", "torch" or "dcp": what TensorSource::format() says of it.
std::string FormatName(PathKind kind);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_PATH_KIND_H_
