// SPDX-License-Identifier: Apache-2.0
//
// OpenMegatronSource: a checkpoint of Megatron-Core as a TensorSource: a ROOT (its latest iteration) or an iteration,
// in the torch_dist form (dist_source.h) or with a file for each rank (rank_source.h). Nothing in it is executed.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The directory of the iteration that `path` denotes: of a ROOT the latest; otherwise `path`. Errors as MegatronLatest.
absl::StatusOr<std::string> ResolveMegatron(const std::string& path);

// kInvalidArgument states what cannot be read and why; kDataLoss names the damage and its file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronSource(const std::string& path,
                                                                 const TensorSourceOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_SOURCE_H_
