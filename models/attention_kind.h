// SPDX-License-Identifier: Apache-2.0
//
// How the attention of a model rounds in bfloat16 and float16. Not a field of config.json: no parameter depends on it,
// and a model may be trained in one way and continued in the other.
#ifndef FSDP_MODELS_ATTENTION_KIND_H_
#define FSDP_MODELS_ATTENTION_KIND_H_

#include <cstdint>

namespace fsdp {

// Float32 is never rounded: there both compute the same, except for the order of sums.
enum class AttentionKind : uint8_t {
  // As Hugging Face's eager models do, op by op: follows their loss curves closely.
  kEager,
  // As kernels that visit each score once do (AttentionRounding::kOnline), which is less work for a GPU.
  kOnline,
};

}  // namespace fsdp

#endif  // FSDP_MODELS_ATTENTION_KIND_H_
