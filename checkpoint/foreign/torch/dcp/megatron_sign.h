// SPDX-License-Identifier: Apache-2.0
//
// IsMegatronDist: how a directory of DCP's files that Megatron-Core wrote is recognised: by the files that it has
// besides. Their keys are stacks of layers, which only Megatron-Core's own reader divides.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_MEGATRON_SIGN_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_MEGATRON_SIGN_H_

#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr char kMegatronMetadataName[] = "metadata.json";
inline constexpr char kMegatronCommonName[] = "common.pt";

// True if `directory` has common.pt and another of its files, or a metadata.json that names a backend: one of them may
// be damaged or missing, which the reader says. Errors of the disk.
absl::StatusOr<bool> IsMegatronDist(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_MEGATRON_SIGN_H_
