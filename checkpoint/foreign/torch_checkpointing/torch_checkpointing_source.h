// SPDX-License-Identifier: Apache-2.0
//
// OpenTorchCheckpointingSource: a directory of torch_checkpointing, with the parts of a run's ranks in a file each
// (items_metadata.h, item_plan.h), or the files that the ranks of an FSDP2 run wrote with torch.save, as a TensorSource
// of whole tensors. The state dict in it is found as in a torch file (torch_state.h). Nothing in a pickle is executed.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Reads the metadata of every rank's files. kInvalidArgument states what cannot be read and why; kDataLoss names the
// damage, or what contradicts what, and the file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchCheckpointingSource(const std::string& path,
                                                                           const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& TorchCheckpointingTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_SOURCE_H_
