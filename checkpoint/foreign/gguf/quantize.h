// SPDX-License-Identifier: Apache-2.0
//
// Quantization to ggml's blocks, bit for bit as gguf-py's reference and ggml's C code, in float32 without contraction.
// A function converts count * GgmlType::block_numel elements to `count` blocks. It returns the number of elements
// before the first block that it cannot represent, with an infinity, a NaN or too large a value; the number of all if
// there is no such block. gguf-py would write garbage there. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_QUANTIZE_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

int64_t QuantizeQ8_0(const float* elements, int64_t count, std::byte* out);
int64_t QuantizeMXFP4(const float* elements, int64_t count, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_QUANTIZE_H_
