// SPDX-License-Identifier: Apache-2.0
//
// HuggingFaceIndex: model.safetensors.index.json, which maps each tensor to a safetensors file of the same directory
// (pytorch_model.bin.index.json has the same form):
//
//   {"metadata": {"total_size": BYTES}, "weight_map": {TENSOR: "model-00001-of-00002.safetensors", ...}}
//
// Pure: text in, text out.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_INDEX_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr char kHuggingFaceIndexName[] = "model.safetensors.index.json";
inline constexpr char kHuggingFaceModelName[] = "model.safetensors";
inline constexpr char kHuggingFaceConfigName[] = "config.json";

// A larger index is neither read nor written. An index has no limit of its own; this is a header's.
inline constexpr int64_t kMaxHuggingFaceIndexBytes = 100'000'000;

struct HuggingFaceIndex {
  // Payload bytes of all files. Written for Hugging Face; ignored when read, because the headers of the files decide.
  int64_t total_size = 0;
  // Tensor -> plain name of a file in the same directory.
  std::map<std::string, std::string> weight_map;
};

// kDataLoss when it is not JSON of this form, names a file outside its directory, or would take more memory than
// decode_budget.h allows.
absl::StatusOr<HuggingFaceIndex> ParseHuggingFaceIndex(std::string_view json);

// The format of transformers: indented by 2, names sorted. kInvalidArgument for more than kMaxHuggingFaceIndexBytes.
absl::StatusOr<std::string> EncodeHuggingFaceIndex(const HuggingFaceIndex& index);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_INDEX_H_
