// SPDX-License-Identifier: Apache-2.0
//
// OpenMegatronRanks: the form of a Megatron checkpoint with a torch file for each tensor, pipeline and expert parallel
// rank, mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, as the model that they have together (rank_models.h). The optimizer
// in these files counts parameters of a rank, without names: it is left out.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// `directory`: of one iteration; `given`: what was given to the reader, the same or its ROOT. world_size() is the
// number of its files. Reads payload only if ranks' tensors must be equal and have no CRC. Errors as
// OpenMegatronSource.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronRanks(const std::string& given, const std::string& directory,
                                                                const TensorSourceOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_SOURCE_H_
