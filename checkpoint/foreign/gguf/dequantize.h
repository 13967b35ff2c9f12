// SPDX-License-Identifier: Apache-2.0
//
// Dequantization of ggml's blocks, bit for bit as gguf-py and ggml's C code: all arithmetic is in float32 and each
// operation is rounded, so this file is compiled without contraction to fused multiply-adds. A function converts
// `count` blocks to count * GgmlType::block_numel elements. Scales are little-endian. Pure; any bytes are valid blocks.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_DEQUANTIZE_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_DEQUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

// Blocks of 32 elements, of 4, 5 and 8 bits. _0: a scale; _1: a scale and a minimum.
void DequantizeQ4_0(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ4_1(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ5_0(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ5_1(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ8_0(const std::byte* blocks, int64_t count, float* out);

// Blocks of 256 elements, in groups of 16 or 32 with scales that are quantized themselves.
void DequantizeQ2K(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ3K(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ4K(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ5K(const std::byte* blocks, int64_t count, float* out);
void DequantizeQ6K(const std::byte* blocks, int64_t count, float* out);

// Indices of 4 bits into a table of 16 values.
void DequantizeIQ4NL(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ4XS(const std::byte* blocks, int64_t count, float* out);

// Indices of rows of a grid (iq_grids.h), with signs apart: the magnitudes of 8 or 4 elements.
void DequantizeIQ2XXS(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ2XS(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ2S(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ3XXS(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ3S(const std::byte* blocks, int64_t count, float* out);

// The same of -1, 0 and 1, which a delta of 1/8 shifts up or down.
void DequantizeIQ1S(const std::byte* blocks, int64_t count, float* out);
void DequantizeIQ1M(const std::byte* blocks, int64_t count, float* out);

// Ternary: -1, 0 and 1 times a scale.
void DequantizeTQ1_0(const std::byte* blocks, int64_t count, float* out);
void DequantizeTQ2_0(const std::byte* blocks, int64_t count, float* out);

// e2m1 elements; a scale is a power of two, or ue4m3.
void DequantizeMXFP4(const std::byte* blocks, int64_t count, float* out);
void DequantizeNVFP4(const std::byte* blocks, int64_t count, float* out);

// Twice the sixteen values of e2m1.
inline constexpr float kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half the scale of an MXFP4 block: 2^(exponent - 128), which is subnormal for 0 and 1.
float HalfOfE8M0(uint8_t exponent);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_DEQUANTIZE_H_
