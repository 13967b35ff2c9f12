// SPDX-License-Identifier: Apache-2.0
//
// OpenMegatronDist: the torch_dist form of a Megatron-Core checkpoint: DCP's .metadata and .distcp files, of which
// dcp_tensors.h reads the tensors and dist_state.h knows the names; common.pt; and metadata.json, which says that it is
// one.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// `directory`: of one iteration; `given`: what was given to the reader, the same or its ROOT. world_size() is the
// number of ranks whose plans are in .metadata; without plans, of those that wrote files. Errors as OpenMegatronSource.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronDist(const std::string& given, const std::string& directory,
                                                               const TensorSourceOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_SOURCE_H_
