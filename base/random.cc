// SPDX-License-Identifier: Apache-2.0

#include "base/random.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace fsdp {
namespace {

constexpr double kPi = 3.141592653589793238;
constexpr double kLn2 = 0.693147180559945309;

// The natural logarithm of a normal number, good to the last bit or two of float64: x = m 2^e with m within a factor
// sqrt(2) of 1, log(m) = 2 atanh((m - 1) / (m + 1)) by its series. Libraries' logarithms differ in the last bit.
double Log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  // 1/sqrt(2) has 0x3FE6A09E in its upper half.
  const uint64_t shifted = bits - (uint64_t{0x3FE6A09E} << 32);
  const auto exponent = static_cast<int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  sum = sum * z;
  return static_cast<double>(exponent) * kLn2 + (2 * s + 2 * s * sum);
}

struct SinCos {
  double sin;
  double cos;
};

// Of 2 pi turn / 2^32. The reduction to an eighth of a turn is exact, in integers; Taylor's series do the rest.
SinCos SinCosOfTurn(uint32_t turn) {
  const uint32_t quadrant = (turn + (1u << 29)) >> 30;
  const auto rest = static_cast<int32_t>(turn - (quadrant << 30));
  const double x = static_cast<double>(rest) * (kPi / 2 / (1 << 30));
  const double z = x * x;
  double s = -1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = s * z * x + x;
  double c = 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 1.0 / 2;
  c = c * z + 1;
  const bool swap = quadrant % 2 == 1;
  const double sine = swap ? c : s;
  const double cosine = swap ? s : c;
  return {quadrant >= 2 && quadrant < 4 ? -sine : sine, quadrant == 1 || quadrant == 2 ? -cosine : cosine};
}

std::array<float, 4> UniformsOf(const std::array<uint32_t, 4>& block) {
  std::array<float, 4> values;
  for (size_t i = 0; i < 4; ++i) values[i] = static_cast<float>(block[i] >> 8) * 0x1p-24f;
  return values;
}

std::array<float, 4> NormalsOf(const std::array<uint32_t, 4>& block) {
  std::array<float, 4> values;
  for (size_t i = 0; i < 4; i += 2) {
    // In (0, 1): never 0, whose logarithm is infinite.
    const double uniform = (static_cast<double>(block[i]) + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2 * Log(uniform));
    const SinCos angle = SinCosOfTurn(block[i + 1]);
    values[i] = static_cast<float>(radius * angle.cos);
    values[i + 1] = static_cast<float>(radius * angle.sin);
  }
  return values;
}

template <typename ValuesOf>
void Fill(const Philox& philox, uint64_t first, absl::Span<float> out, ValuesOf values_of) {
  size_t filled = 0;
  while (filled < out.size()) {
    const uint64_t index = first + filled;
    const std::array<float, 4> values = values_of(philox.Block(index / 4));
    for (size_t lane = index % 4; lane < 4 && filled < out.size(); ++lane) out[filled++] = values[lane];
  }
}

}  // namespace

std::array<uint32_t, 4> Philox::Block(uint64_t block) const {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                               static_cast<uint32_t>(sequence_), static_cast<uint32_t>(sequence_ >> 32)};
  uint32_t key0 = static_cast<uint32_t>(seed_);
  uint32_t key1 = static_cast<uint32_t>(seed_ >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * c[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

void FillUniform(const Philox& philox, uint64_t first, absl::Span<float> out) { Fill(philox, first, out, UniformsOf); }

void FillNormal(const Philox& philox, uint64_t first, absl::Span<float> out) { Fill(philox, first, out, NormalsOf); }

}  // namespace fsdp
