// SPDX-License-Identifier: Apache-2.0
//
// WriteTorchFile: a state dict as one .pt file that torch.load(weights_only=True) reads, in bounded memory.
#ifndef FSDP_CHECKPOINT_TORCH_PT_TORCH_WRITER_H_
#define FSDP_CHECKPOINT_TORCH_PT_TORCH_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/torch/pt/torch_archive_writer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Makes the file `path` from `contents` (keys, dtypes, shapes, texts, aliases; shards are ignored) and `read`. It
// appears whole, by rename of a hidden sibling, or not at all. Equal input gives equal bytes. What it holds:
// torch_encoding.h.
absl::Status WriteTorchFile(const std::string& path, const StateDict& contents, const PayloadReader& read,
                            const TorchWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_TORCH_WRITER_H_
