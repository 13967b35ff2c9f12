// SPDX-License-Identifier: Apache-2.0
//
// OpenNativeSource: a checkpoint directory of ours as a TensorSource. It needs the manifest and pread and nothing else:
// the HDF5 library is not called, and a virtual dataset is never read. SHARDED checkpoints hold rows and LOCAL ones
// flat slices; both are intervals of elements here.
#ifndef FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_
#define FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Opens the checkpoint directory `path`. Reads manifest and texts; rank files are opened and checked when they are
// first read from. kNotFound when there is no manifest; kDataLoss names the file that is damaged; kUnimplemented when a
// later release wrote it.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNativeSource(const std::string& path,
                                                               const TensorSourceOptions& options = {});

// Of a checkpoint directory, for its driver.
const FormatTraits& NativeTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_READ_NATIVE_SOURCE_H_
