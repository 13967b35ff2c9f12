// SPDX-License-Identifier: Apache-2.0
//
// WriteMegatron: writes a model and its optimizer as a ROOT with one checkpoint in the torch_dist form, as one rank of
// Megatron-Core saves it: stacked keys (stacks.h, optimizer_stacks.h), a chunk for each layer, the empty _extra_state
// of its linear modules, common.pt (common_encoding.h), metadata.json and the latest file. Pulled block by block in
// bounded memory. Equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Creates the directory `path` from `contents` (shards are ignored) and `read`; FitMegatron has left out what has no
// place. `step`: the iteration; -1: a release. It appears whole, by rename of a hidden sibling, or not at all. Errors
// as StacksOf, OptimizerStacksOf and EncodeCommon, and kInvalidArgument for different numbers of steps, before anything
// is written.
absl::Status WriteMegatron(const std::string& path, const StateDict& contents, int64_t step, const PayloadReader& read,
                           const TorchWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_WRITER_H_
