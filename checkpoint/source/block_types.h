// SPDX-License-Identifier: Apache-2.0
//
// BlockTypes: the types of tensors that are carried as blocks of bytes (TensorSourceOptions::keep_quantized). They are
// one text of the metadata, so that every format with metadata keeps them, and a GGUF file can be made again of any:
//
//   "ggml_types": {"blk.0.attn_q.weight": "Q4_K", ...}
#ifndef FSDP_CHECKPOINT_SOURCE_BLOCK_TYPES_H_
#define FSDP_CHECKPOINT_SOURCE_BLOCK_TYPES_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr char kBlockTypesKey[] = "ggml_types";  // in TensorSource::metadata()

// ggml's name of the type, by tensor.
using BlockTypes = std::map<std::string, std::string>;

std::string EncodeBlockTypes(const BlockTypes& types);

// The types in the metadata of a source; none if it does not have the key. kDataLoss if the text has another form.
absl::StatusOr<BlockTypes> BlockTypesOf(const std::map<std::string, std::string>& metadata);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_BLOCK_TYPES_H_
