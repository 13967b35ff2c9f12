// SPDX-License-Identifier: Apache-2.0
//
// OpenNativeSource: a checkpoint directory of ours as a TensorSource. It needs only the manifest and pread: it does not
// call the HDF5 library and never reads a virtual dataset. SHARDED checkpoints hold rows, LOCAL ones flat slices; both
// are intervals of elements here.
#ifndef FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_
#define FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Opens the checkpoint directory `path`. Reads manifest and texts; rank files are opened and checked when they are
// first read from. kNotFound without a manifest; kDataLoss names the damaged file; kUnimplemented when a later release
// wrote it. The source keeps `files`, which it reads from; null is the operating system's. `notes`: of its layout().
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNativeSource(const std::string& path,
                                                               const TensorSourceOptions& options = {},
                                                               std::shared_ptr<FileSystem> files = nullptr,
                                                               std::vector<std::string> notes = {});

// The traits of a checkpoint directory, for its driver.
const FormatTraits& NativeTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_
