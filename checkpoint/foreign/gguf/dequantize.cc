// SPDX-License-Identifier: Apache-2.0
//
// In all types an element is a code of few bits, and runs of consecutive elements share one shift and one scale: the
// inner loops are over such runs, so that the compiler vectorises them.
#include "fsdp/checkpoint/foreign/gguf/dequantize.h"

#include <bit>
#include <cmath>

#include "fsdp/checkpoint/foreign/gguf/block_bytes.h"

namespace fsdp {
namespace {

// Every type has blocks of 32, 64 or 256 elements with scales of their own; the layouts are ggml-common.h's. The order
// of float32 operations is gguf-py's (quants.py), so that the results are equal in every bit: a product is rounded
// before a minimum is subtracted.

// ggml's table of IQ4: denser near 0.
constexpr float kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The code of each of 2 * half elements: low nibbles first, then high nibbles.
template <typename ValueOf>
void Nibbles(const uint8_t* qs, int half, float* out, ValueOf value_of) {
  for (int i = 0; i < half; ++i) out[i] = value_of(qs[i] & 15);
  for (int i = 0; i < half; ++i) out[half + i] = value_of(qs[i] >> 4);
}

// The same with a fifth bit for each of 32 elements.
template <typename ValueOf>
void FiveBits(const uint8_t* qs, uint32_t high, float* out, ValueOf value_of) {
  for (int i = 0; i < 16; ++i) out[i] = value_of((qs[i] & 15) | static_cast<int>((high >> i & 1) << 4));
  for (int i = 0; i < 16; ++i) out[16 + i] = value_of((qs[i] >> 4) | static_cast<int>((high >> (i + 16) & 1) << 4));
}

// The scale and the minimum of group `j` of 8, of 6 bits each in 12 bytes.
struct ScaleAndMin {
  float scale;
  float min;
};
ScaleAndMin GroupOfK(const uint8_t* scales, int j) {
  if (j < 4) return {static_cast<float>(scales[j] & 63), static_cast<float>(scales[j + 4] & 63)};
  const int scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
  const int min = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// The scale of group `j` of 16 of a Q3_K block: 4 low bits in the first 8 bytes, 2 high bits in the last 4.
float ScaleOfQ3K(const uint8_t* scales, int j) {
  const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
  const int high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
  return static_cast<float>((low | high << 4) - 32);
}

// Half of a ue4m3 number, with the codes 0 and 127 as 0.
float HalfOfUE4M3(uint8_t code) {
  if (code == 0 || code == 0x7F) return 0;
  const int exponent = code >> 3 & 15;
  const auto mantissa = static_cast<float>(code & 7);
  const float value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
  return 0.5f * value;
}

}  // namespace

void DequantizeQ4_0(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 18, out += 32) {
    const float d = BlockF16(at);
    Nibbles(at + 2, 16, out, [&](int q) { return d * static_cast<float>(q - 8); });
  }
}

void DequantizeQ4_1(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 20, out += 32) {
    const float d = BlockF16(at);
    const float m = BlockF16(at + 2);
    Nibbles(at + 4, 16, out, [&](int q) { return d * static_cast<float>(q) + m; });
  }
}

void DequantizeQ5_0(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 22, out += 32) {
    const float d = BlockF16(at);
    FiveBits(at + 6, BlockU32(at + 2), out, [&](int q) { return d * static_cast<float>(q - 16); });
  }
}

void DequantizeQ5_1(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 24, out += 32) {
    const float d = BlockF16(at);
    const float m = BlockF16(at + 2);
    FiveBits(at + 8, BlockU32(at + 4), out, [&](int q) { return d * static_cast<float>(q) + m; });
  }
}

void DequantizeQ8_0(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 34, out += 32) {
    const float d = BlockF16(at);
    for (int k = 0; k < 32; ++k) out[k] = static_cast<float>(static_cast<int8_t>(at[2 + k])) * d;
  }
}

// "K" types: a block of 256 has groups with small integer scales, which two float16 numbers scale again.
void DequantizeQ2K(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 84, out += 256) {
    const uint8_t* const qs = at + 16;
    const float d = BlockF16(at + 80);
    const float dmin = BlockF16(at + 82);
    for (int j = 0; j < 16; ++j) {
      const float scale = d * static_cast<float>(at[j] & 15);
      const float min = dmin * static_cast<float>(at[j] >> 4);
      const uint8_t* const q = qs + 32 * (j / 8) + 16 * (j % 2);
      const int shift = 2 * (j % 8 / 2);
      for (int k = 0; k < 16; ++k) out[16 * j + k] = scale * static_cast<float>(q[k] >> shift & 3) - min;
    }
  }
}

void DequantizeQ3K(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 110, out += 256) {
    const float d = BlockF16(at + 108);
    for (int j = 0; j < 16; ++j) {
      const float scale = d * ScaleOfQ3K(at + 96, j);
      const uint8_t* const q = at + 32 + 32 * (j / 8) + 16 * (j % 2);
      const uint8_t* const high = at + 16 * (j % 2);
      const int shift = 2 * (j % 8 / 2);
      const int bit = j / 2;
      // The third bit is stored inverted: without it the code is less by 4.
      for (int k = 0; k < 16; ++k) {
        out[16 * j + k] = scale * static_cast<float>((q[k] >> shift & 3) - 4 * (1 - (high[k] >> bit & 1)));
      }
    }
  }
}

void DequantizeQ4K(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 144, out += 256) {
    const float d = BlockF16(at);
    const float dmin = BlockF16(at + 2);
    for (int j = 0; j < 8; ++j) {
      const ScaleAndMin group = GroupOfK(at + 4, j);
      const float scale = d * group.scale;
      const float min = dmin * group.min;
      const uint8_t* const q = at + 16 + 32 * (j / 2);
      const int shift = 4 * (j % 2);
      for (int k = 0; k < 32; ++k) out[32 * j + k] = scale * static_cast<float>(q[k] >> shift & 15) - min;
    }
  }
}

void DequantizeQ5K(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 176, out += 256) {
    const float d = BlockF16(at);
    const float dmin = BlockF16(at + 2);
    const uint8_t* const high = at + 16;
    for (int j = 0; j < 8; ++j) {
      const ScaleAndMin group = GroupOfK(at + 4, j);
      const float scale = d * group.scale;
      const float min = dmin * group.min;
      const uint8_t* const q = at + 48 + 32 * (j / 2);
      const int shift = 4 * (j % 2);
      for (int k = 0; k < 32; ++k) {
        out[32 * j + k] = scale * static_cast<float>((q[k] >> shift & 15) | (high[k] >> j & 1) << 4) - min;
      }
    }
  }
}

void DequantizeQ6K(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 210, out += 256) {
    const float d = BlockF16(at + 208);
    for (int j = 0; j < 16; ++j) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(at[192 + j]));
      const int half = j / 8;          // of the block
      const int first = 16 * j % 128;  // element of the half
      const uint8_t* const low = at + 64 * half + first % 64;
      const uint8_t* const high = at + 128 + 32 * half + first % 32;
      const int low_shift = 4 * (first / 64);
      const int high_shift = 2 * (first / 32);
      for (int k = 0; k < 16; ++k) {
        const int q = (low[k] >> low_shift & 15) | (high[k] >> high_shift & 3) << 4;
        out[16 * j + k] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

// The codes are indices of a table instead of numbers.
void DequantizeIQ4NL(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 18, out += 32) {
    const float d = BlockF16(at);
    Nibbles(at + 2, 16, out, [&](int q) { return d * kIQ4[q]; });
  }
}

void DequantizeIQ4XS(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 136, out += 256) {
    const float d = BlockF16(at);
    const uint16_t high = BlockU16(at + 2);
    for (int j = 0; j < 8; ++j) {
      const int scale = (at[4 + j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4;
      const float group = d * static_cast<float>(scale - 32);
      Nibbles(at + 8 + 16 * j, 16, out + 32 * j, [&](int q) { return group * kIQ4[q]; });
    }
  }
}

void DequantizeTQ1_0(const std::byte* blocks, int64_t count, float* out) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 54, out += 256) {
    const float d = BlockF16(at + 52);
    // Each byte is a fraction of 243 in base 3; a digit moves to the front by multiplication modulo 256. `bytes` bytes
    // have the first digits of consecutive elements, then the second ones.
    const auto digits = [&](const uint8_t* qs, int bytes, int count_of_digits, float* to) {
      for (int k = 0; k < count_of_digits; ++k) {
        for (int b = 0; b < bytes; ++b) {
          const auto moved = static_cast<uint8_t>(qs[b] * kPowers[k]);
          to[bytes * k + b] = d * static_cast<float>((moved * 3 >> 8) - 1);
        }
      }
    };
    digits(at, 32, 5, out);
    digits(at + 32, 16, 5, out + 160);
    digits(at + 48, 4, 4, out + 240);
  }
}

void DequantizeTQ2_0(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 66, out += 256) {
    const float d = BlockF16(at + 64);
    for (int j = 0; j < 8; ++j) {
      const uint8_t* const q = at + 32 * (j / 4);
      const int shift = 2 * (j % 4);
      for (int k = 0; k < 32; ++k) out[32 * j + k] = d * static_cast<float>((q[k] >> shift & 3) - 1);
    }
  }
}

float HalfOfE8M0(uint8_t exponent) {
  return std::bit_cast<float>(exponent < 2 ? uint32_t{0x200000} << exponent
                                           : static_cast<uint32_t>(exponent - 1) << 23);
}

// The exponent is halved because gguf-py's table has doubled values.
void DequantizeMXFP4(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 17, out += 32) {
    const float scale = HalfOfE8M0(at[0]);
    Nibbles(at + 1, 16, out, [&](int q) { return scale * kE2M1[q]; });
  }
}

void DequantizeNVFP4(const std::byte* blocks, int64_t count, float* out) {
  const uint8_t* at = BlockBytes(blocks);
  for (int64_t i = 0; i < count; ++i, at += 36, out += 64) {
    for (int j = 0; j < 4; ++j) {
      const float scale = HalfOfUE4M3(at[j]);
      Nibbles(at + 4 + 8 * j, 8, out + 16 * j, [&](int q) { return scale * kE2M1[q]; });
    }
  }
}

}  // namespace fsdp
