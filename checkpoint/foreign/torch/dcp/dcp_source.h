// SPDX-License-Identifier: Apache-2.0
//
// OpenDcpSource: a directory that torch.distributed.checkpoint wrote, from any number of ranks and any mesh, as a
// TensorSource. Chunks are boxes; a read touches only the chunks that overlap its interval, and only the overlap.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// True when `directory` holds a .metadata file.
absl::StatusOr<bool> IsDcpDirectory(const std::string& directory);

// Reads .metadata and the values that are not tensors. world_size() is the number of ranks in the names of files.
// kInvalidArgument states what cannot be read and why; kDataLoss names the damage and its file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenDcpSource(const std::string& path,
                                                            const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& DcpTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_SOURCE_H_
