// SPDX-License-Identifier: Apache-2.0
//
// WriteDcpDirectory: writes a state dict as a directory that torch.distributed.checkpoint.load reads at any world size,
// in bounded memory. Rank r of `world_size` has torch.chunk's r-th part of each tensor's rows, as FSDP2 would have
// saved it. Names are paths in {"model": ..., "optim": ...}, flattened as in torch.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// How often WriteDcpDirectory counts each tensor in TorchWriteOptions::count_names.
inline constexpr int64_t kDcpNameWork = 2;

// Creates the directory `path` from `contents` (shards are ignored) and `read`: a file for each rank that holds
// something, and .metadata. It appears whole, by rename of a hidden sibling, or not at all. Equal input gives equal
// bytes. Aliases refer to the chunks of their tensor. Errors as EncodeTorchState.
absl::Status WriteDcpDirectory(const std::string& path, const StateDict& contents, int world_size,
                               const PayloadReader& read, const TorchWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_WRITER_H_
