// SPDX-License-Identifier: Apache-2.0
//
// OpenTorchSource: a file that torch.save wrote, a directory of such files with pytorch_model.bin.index.json, or one
// with a file of each rank of a run (rank_files.h), as a TensorSource. No part of a pickle is executed. Payload
// is read in place; views are gathered from their storages. CRCs, if torch wrote them, are compared as soon as an entry
// has been read whole.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

inline constexpr char kTorchModelName[] = "pytorch_model.bin";

// True when `directory` holds one of these two, or the files of ranks.
absl::StatusOr<bool> IsTorchDirectory(const std::string& directory);

// kInvalidArgument states what cannot be read and why; kDataLoss names the damage and its file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchSource(const std::string& path,
                                                              const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& TorchTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_SOURCE_H_
