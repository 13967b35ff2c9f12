// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/quantize.h"

#include <algorithm>
#include <cmath>

#include "fsdp/checkpoint/foreign/gguf/dequantize.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr int kBlock = 32;

// The largest magnitude; infinity if an element is not a number or infinite.
float LargestOf(const float* elements) {
  float largest = 0;
  bool are_finite = true;
  for (int k = 0; k < kBlock; ++k) {
    const float magnitude = std::fabs(elements[k]);
    are_finite &= magnitude <= 3.4028234664e38f;
    largest = std::max(largest, magnitude);
  }
  return are_finite ? largest : INFINITY;
}

// Halves are rounded away from zero.
int8_t RoundToInt8(float value) {
  const float magnitude = std::fabs(value);
  const int whole = static_cast<int>(magnitude);
  const int rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
  return static_cast<int8_t>(value < 0 ? -rounded : rounded);
}

// The code of the nearest value for each element of a block: of equally near ones the first, which is the one nearer to
// 0, and never the second zero. Comparing with the midpoints, which are exact, gives what gguf-py finds by comparing
// the sixteen errors, because those that matter are exact as well: neighbours other than 0 are at most a factor 2
// apart.
void NearestE2M1(const float* elements, float scale, int32_t* codes) {
  constexpr float kMidpoints[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};
  for (int k = 0; k < kBlock; ++k) codes[k] = 0;
  for (const float midpoint : kMidpoints) {
    const float bound = scale * midpoint;
    for (int k = 0; k < kBlock; ++k) codes[k] += std::fabs(elements[k]) > bound ? 1 : 0;
  }
  for (int k = 0; k < kBlock; ++k) codes[k] += codes[k] > 0 && elements[k] < 0 ? 8 : 0;
}

}  // namespace

int64_t QuantizeQ8_0(const float* elements, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i, elements += kBlock, out += 34) {
    const float scale = LargestOf(elements) / 127;
    const uint16_t stored = FloatToFloat16(scale);
    if (!std::isfinite(Float16ToFloat(stored))) return i * kBlock;
    // The inverse of a subnormal scale may overflow; as float16 such a scale is 0 anyhow, and so is every element.
    const float inverse = scale == 0 || !std::isfinite(1 / scale) ? 0 : 1 / scale;
    out[0] = static_cast<std::byte>(stored & 0xFF);
    out[1] = static_cast<std::byte>(stored >> 8);
    for (int k = 0; k < kBlock; ++k) out[2 + k] = static_cast<std::byte>(RoundToInt8(elements[k] * inverse));
  }
  return count * kBlock;
}

int64_t QuantizeMXFP4(const float* elements, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i, elements += kBlock, out += 17) {
    const float largest = LargestOf(elements);
    if (!std::isfinite(largest)) return i * kBlock;
    // As float32, like the logarithm of gguf-py, which may round up to a whole number. The exponent has 8 bits; ggml
    // lets the exponent of a block below 2^-125 overflow, here it is the least one.
    const auto logarithm = static_cast<float>(std::log2(static_cast<double>(largest)));
    const float exponent = largest > 0 ? std::floor(logarithm) - 2 + 127 : 0;
    const auto stored = static_cast<uint8_t>(std::max(exponent, 0.0f));
    const float scale = HalfOfE8M0(stored);
    int32_t codes[kBlock];
    NearestE2M1(elements, scale, codes);
    out[0] = static_cast<std::byte>(stored);
    for (int k = 0; k < 16; ++k) out[1 + k] = static_cast<std::byte>(codes[k] | codes[16 + k] << 4);
  }
  return count * kBlock;
}

}  // namespace fsdp
