// SPDX-License-Identifier: Apache-2.0
//
// The IQ types with grids: a block has 8 groups of 32 elements; a group is 4 runs of 8 elements, each one row of 8
// magnitudes or two rows of 4. Bits of an index that do not fit in its byte, signs and scales are elsewhere in the
// block, in another place in each type. The comments give the layout of a block in bytes.
#include <bit>

#include "fsdp/checkpoint/foreign/gguf/block_bytes.h"
#include "fsdp/checkpoint/foreign/gguf/dequantize.h"
#include "fsdp/checkpoint/foreign/gguf/iq_grids.h"

namespace fsdp {
namespace {

constexpr int kGroups = 8;
constexpr int kRuns = 4;  // in a group
constexpr int kRun = 8;

// 7 signs, and the eighth that makes their number even.
int SignsOf(uint32_t code) {
  const auto seven = static_cast<int>(code & 127);
  return seven | (std::popcount(static_cast<uint32_t>(seven)) & 1) << 7;
}

// Element k is negative if bit k of `signs` is set. Multiplying by -1 is what gguf-py does, so that 0 becomes -0.
float Signed(float value, int signs, int k) { return value * ((signs >> k & 1) != 0 ? -1.0f : 1.0f); }

void RunOf8(uint16_t row, const float* values, float scale, int signs, float* out) {
  for (int k = 0; k < kRun; ++k) out[k] = Signed(scale * values[row >> 2 * k & 3], signs, k);
}

// Two rows of 4.
void RunOf4And4(uint16_t first, uint16_t second, const float* values, float scale, int signs, float* out) {
  for (int k = 0; k < 4; ++k) out[k] = Signed(scale * values[first >> 3 * k & 7], signs, k);
  for (int k = 0; k < 4; ++k) out[4 + k] = Signed(scale * values[second >> 3 * k & 7], signs, 4 + k);
}

void ShiftedRun(uint16_t row, float scale, float delta, float* out) {
  for (int k = 0; k < kRun; ++k) out[k] = scale * (kIQ1Values[row >> 2 * k & 3] + delta);
}

// The nibble `i` of bytes that have the low one first.
int Nibble(const uint8_t* bytes, int i) { return bytes[i / 2] >> 4 * (i % 2) & 15; }

}  // namespace

// d 2 | for each group: 4 indices, then 4 times 7 bits of signs and a scale in the upper 4 bits of 32
void DequantizeIQ2XXS(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 66) {
    const float d = BlockF16(at);
    for (int j = 0; j < kGroups; ++j) {
      const uint8_t* const indices = at + 2 + 8 * j;
      const uint32_t rest = BlockU32(indices + 4);
      const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
      for (int r = 0; r < kRuns; ++r, out += kRun) {
        RunOf8(kIQ2XXSGrid[indices[r]], kIQ2Values, scale, SignsOf(rest >> 7 * r), out);
      }
    }
  }
}

// d 2 | 32 times 9 bits of an index and 7 of signs, in 2 bytes | 16 nibbles of scales, each of two runs
void DequantizeIQ2XS(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 74) {
    const float d = BlockF16(at);
    for (int r = 0; r < kGroups * kRuns; ++r, out += kRun) {
      const uint16_t code = BlockU16(at + 2 + 2 * r);
      const float scale = d * (0.5f + static_cast<float>(Nibble(at + 66, r / 2))) * 0.25f;
      RunOf8(kIQ2XSGrid[code & 511], kIQ2Values, scale, SignsOf(code >> 9), out);
    }
  }
}

// d 2 | 32 indices | 32 bytes of signs | 8 bytes with 2 upper bits of each index | 16 nibbles of scales
void DequantizeIQ2S(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 82) {
    const float d = BlockF16(at);
    for (int r = 0; r < kGroups * kRuns; ++r, out += kRun) {
      const int index = at[2 + r] | (at[66 + r / 4] >> 2 * (r % 4) & 3) << 8;
      const float scale = d * (0.5f + static_cast<float>(Nibble(at + 74, r / 2))) * 0.25f;
      RunOf8(kIQ2SGrid[index], kIQ2Values, scale, at[34 + r], out);
    }
  }
}

// d 2 | 64 indices | for each group 4 times 7 bits of signs and a scale in the upper 4 bits of 32
void DequantizeIQ3XXS(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 98) {
    const float d = BlockF16(at);
    for (int j = 0; j < kGroups; ++j) {
      const uint32_t rest = BlockU32(at + 66 + 4 * j);
      const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
      const uint8_t* const indices = at + 2 + 8 * j;
      for (int r = 0; r < kRuns; ++r, out += kRun) {
        RunOf4And4(kIQ3XXSGrid[indices[2 * r]], kIQ3XXSGrid[indices[2 * r + 1]], kIQ3XXSValues, scale,
                   SignsOf(rest >> 7 * r), out);
      }
    }
  }
}

// d 2 | 64 indices | 8 bytes with the ninth bit of each | 32 bytes of signs | 8 nibbles of scales, each of a group
void DequantizeIQ3S(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 110) {
    const float d = BlockF16(at);
    const auto row = [&](int r) { return kIQ3SGrid[at[2 + r] | (at[66 + r / 8] >> r % 8 & 1) << 8]; };
    for (int r = 0; r < kGroups * kRuns; ++r, out += kRun) {
      const float scale = d * static_cast<float>(1 + 2 * Nibble(at + 106, r / 4));
      RunOf4And4(row(2 * r), row(2 * r + 1), kIQ3SValues, scale, at[74 + r], out);
    }
  }
}

// d 2 | 32 indices | for each group 4 times 3 upper bits of an index, 3 bits of a scale, and the sign of delta
void DequantizeIQ1S(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 50) {
    const float d = BlockF16(at);
    for (int j = 0; j < kGroups; ++j) {
      const uint16_t rest = BlockU16(at + 34 + 2 * j);
      const float scale = d * static_cast<float>(2 * (rest >> 12 & 7) + 1);
      const float delta = (rest & 0x8000) != 0 ? -0.125f : 0.125f;
      for (int r = 0; r < kRuns; ++r, out += kRun) {
        ShiftedRun(kIQ1Grid[at[2 + kRuns * j + r] | (rest >> 3 * r & 7) << 8], scale, delta, out);
      }
    }
  }
}

// 32 indices | 32 nibbles with 3 upper bits of an index and the sign of delta | 4 times 2 bytes: 4 scales of 3 bits,
// each of two runs, and 4 bits of d
void DequantizeIQ1M(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 56) {
    const uint8_t* const scales = at + 48;
    uint16_t bits = 0;
    for (int k = 0; k < 4; ++k) bits = static_cast<uint16_t>(bits | (BlockU16(scales + 2 * k) >> 12) << 4 * k);
    const float d = Float16ToFloat(bits);
    for (int r = 0; r < kGroups * kRuns; ++r, out += kRun) {
      const int high = Nibble(at + 32, r);
      const int code = BlockU16(scales + 2 * (r / 8)) >> 3 * (r / 2 % 4) & 7;
      const float scale = d * static_cast<float>(2 * code + 1);
      ShiftedRun(kIQ1Grid[at[r] | (high & 7) << 8], scale, (high & 8) != 0 ? -0.125f : 0.125f, out);
    }
  }
}

}  // namespace fsdp
