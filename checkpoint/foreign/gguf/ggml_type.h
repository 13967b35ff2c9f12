// SPDX-License-Identifier: Apache-2.0
//
// GgmlType: the types of elements in a GGUF file. A quantized type has blocks of elements along the last dimension,
// each with its own scale; a block is always read whole. All other types are dtypes of this project. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGML_TYPE_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGML_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/types/span.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct GgmlType {
  uint32_t id = 0;          // in files
  std::string_view name;    // ggml's: "Q4_K"
  int64_t block_numel = 1;  // elements of a block; rows are multiples of it
  int64_t block_bytes = 1;

  // Of the elements as they are read: float32 for quantized types. nullopt: this release does not read the type.
  std::optional<DType> dtype = {};

  // Converts `count` blocks to elements; null: the elements are stored as `dtype`.
  void (*dequantize)(const std::byte* blocks, int64_t count, float* out) = nullptr;

  // The inverse (quantize.h); null: a quantized type that is not written.
  int64_t (*quantize)(const float* elements, int64_t count, std::byte* out) = nullptr;

  bool is_quantized() const { return block_numel > 1; }
  bool is_written() const { return is_quantized() ? quantize != nullptr : dtype.has_value(); }
};

// The largest GgmlType::block_numel.
inline constexpr int64_t kMaxGgmlBlockNumel = 256;

// All types that ggml has now, by id.
absl::Span<const GgmlType> GgmlTypes();

// The type with that id, that name in any case, or that dtype of elements as they are stored; else null.
const GgmlType* FindGgmlType(uint32_t id);
const GgmlType* FindGgmlType(std::string_view name);
const GgmlType* FindGgmlType(DType dtype);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGML_TYPE_H_
