// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsShards: a directory by HuggingFaceStorageWriter of torch.distributed.checkpoint, without consolidation:
//
//   shard-00001-model-00001-of-00001.safetensors    of rank 0; __metadata__ has DCP_SHARDING_INFO:
//   shard-00002-model-00001-of-00001.safetensors      {"a.weight": {"saved_offsets": [2, 0]}, ...}
//
// A file has a part of each tensor, and the place of the part in the tensor. No file has the tensor's shape or the
// number of ranks: the shape is where the parts end, as for torch's reader, and the parts must fill it exactly.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SHARDS_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SHARDS_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The member of __metadata__.
inline constexpr char kDcpShardingInfo[] = "DCP_SHARDING_INFO";

// True for "shard-00001-model-00001-of-00002.safetensors".
bool IsSafetensorsShardName(std::string_view name);

// True when `directory` has a file of such a name.
absl::StatusOr<bool> IsSafetensorsShardDirectory(const std::string& directory);

// Opens all files of such a name, whose headers it reads and checks. kDataLoss names a tensor whose parts have holes,
// overlap, or differ in dtype or rank, and a file whose DCP_SHARDING_INFO lacks a tensor.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsShards(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SHARDS_H_
