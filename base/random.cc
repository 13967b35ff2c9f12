// SPDX-License-Identifier: Apache-2.0
//
// Each lane of a vector computes one Philox block: four 32-bit numbers, which become four values. The rounds,
// Box-Muller and the conversions thus vectorise over blocks without shuffles, and StoreInterleaved4 puts the values in
// order.
//
// Bits must be equal on all machines, for all vector widths and for any division of the work. So the code uses only
// IEEE operations that round correctly (add, subtract, multiply, divide, square root), without contraction to fused
// multiply-adds (BUILD). Logarithm, sine and cosine are polynomials computed here: the C library's results differ
// between versions and machines in the last bit. float64 throughout, so that the float32 results are rounded from
// enough digits.
#include "fsdp/base/random.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

// Highway compiles the vectorised part once for AVX-512, AVX2 and the portable baseline.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/random.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

//
#include "hwy/highway.h"

#ifndef FSDP_BASE_RANDOM_CC_CONSTANTS_
#define FSDP_BASE_RANDOM_CC_CONSTANTS_
namespace fsdp {
namespace {

// The constants of Philox4x32-10 as Salmon et al. give them (SC11, also in Random123 and cuRAND).
constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

constexpr double kPi = 3.141592653589793238;
constexpr double kLn2 = 0.693147180559945309;

}  // namespace
}  // namespace fsdp
#endif  // FSDP_BASE_RANDOM_CC_CONSTANTS_

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// All arithmetic is on 64-bit lanes: float64, or uint64 that hold 32-bit numbers. A vector has at most eight lanes.
using F64 = hn::CappedTag<double, 8>;
using U64 = hn::RebindToUnsigned<F64>;
using F32 = hn::Rebind<float, F64>;
using VecF64 = hn::Vec<F64>;
using VecU64 = hn::Vec<U64>;
constexpr size_t kMaxBlocks = 8;

// Blocks `block`, `block` + 1, ...: one per lane.
struct Blocks {
  VecU64 c0, c1, c2, c3;
};

HWY_INLINE VecU64 Low32(VecU64 v) { return hn::And(v, hn::Set(U64(), 0xFFFFFFFFu)); }

// The product of the low halves of the lanes.
template <class D>
HWY_INLINE hn::Vec<D> Product(D d, hn::Vec<D> a, uint32_t b) {
  if constexpr (HWY_TARGET == HWY_SCALAR) {
    // HWY_SCALAR's vectors of one lane have no halves to multiply.
    return hn::Set(d, hn::GetLane(a) * b);
  } else {
    const hn::Repartition<uint32_t, D> du32;
    return hn::MulEven(hn::BitCast(du32, a), hn::BitCast(du32, hn::Set(d, b)));
  }
}

HWY_INLINE Blocks PhiloxBlocks(uint64_t seed, uint64_t sequence, uint64_t block) {
  const U64 du;
  const VecU64 counter = hn::Add(hn::Set(du, block), hn::Iota(du, 0));
  VecU64 c0 = Low32(counter);
  VecU64 c1 = hn::ShiftRight<32>(counter);
  VecU64 c2 = hn::Set(du, sequence & 0xFFFFFFFFu);
  VecU64 c3 = hn::Set(du, sequence >> 32);
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const VecU64 product0 = Product(du, c0, kMultiplier0);
    const VecU64 product1 = Product(du, c2, kMultiplier1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(du, key0));
    c1 = Low32(product1);
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(du, key1));
    c3 = Low32(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

// Whole numbers below 2^52 as float64, less `offset`: exact, and without the conversion instruction that only AVX-512
// has.
HWY_INLINE VecF64 ToFloat64(VecU64 v, double offset) {
  const F64 d;
  const VecU64 in_mantissa = hn::Or(v, hn::Set(U64(), uint64_t{0x433} << 52));
  return hn::Sub(hn::BitCast(d, in_mantissa), hn::Set(d, 0x1p52 + offset));
}

// Horner's rule, without fused multiply-adds, which not all targets have.
template <size_t kTerms>
HWY_INLINE VecF64 Polynomial(const double (&coefficients)[kTerms], VecF64 z) {
  const F64 d;
  VecF64 sum = hn::Set(d, coefficients[0]);
  for (size_t i = 1; i < kTerms; ++i) sum = hn::Add(hn::Mul(sum, z), hn::Set(d, coefficients[i]));
  return sum;
}

// The natural logarithm of normal numbers, correct to the last bit or two of float64: x = m 2^e with m within a factor
// sqrt(2) of 1, log(m) = 2 atanh((m - 1) / (m + 1)) by its series.
HWY_INLINE VecF64 Log(VecF64 x) {
  constexpr double kSeries[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  0.0};
  constexpr uint64_t kOne = uint64_t{0x3FF00000} << 32;
  constexpr uint64_t kRootOfHalf = uint64_t{0x3FE6A09E} << 32;
  const F64 d;
  const U64 du;
  const VecU64 shifted = hn::Add(hn::BitCast(du, x), hn::Set(du, kOne - kRootOfHalf));
  const VecF64 exponent = ToFloat64(hn::ShiftRight<52>(shifted), 1023);
  const VecU64 mantissa = hn::And(shifted, hn::Set(du, (uint64_t{1} << 52) - 1));
  const VecF64 m = hn::BitCast(d, hn::Add(mantissa, hn::Set(du, kRootOfHalf)));
  const VecF64 one = hn::Set(d, 1);
  const VecF64 s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VecF64 sum = Polynomial(kSeries, hn::Mul(s, s));
  const VecF64 s2 = hn::Add(s, s);
  return hn::Add(hn::Mul(exponent, hn::Set(d, kLn2)), hn::Add(s2, hn::Mul(s2, sum)));
}

struct SinCos {
  VecF64 sin, cos;
};

// Sine and cosine of 2 pi turn / 2^32. The reduction to at most an eighth of a turn is exact, in integers; Taylor
// series compute the rest.
HWY_INLINE SinCos SinCosOfTurn(VecU64 turn) {
  constexpr double kSin[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                             -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  constexpr double kCos[] = {1.0 / 20922789888000,
                             -1.0 / 87178291200,
                             1.0 / 479001600,
                             -1.0 / 3628800,
                             1.0 / 40320,
                             -1.0 / 720,
                             1.0 / 24,
                             -1.0 / 2,
                             1.0};
  const F64 d;
  const U64 du;
  const VecU64 quadrant = hn::ShiftRight<30>(hn::Add(turn, hn::Set(du, 1u << 29)));
  // Between -2^29 and 2^29, made positive for the conversion.
  const VecU64 rest = hn::Sub(hn::Add(turn, hn::Set(du, uint64_t{1} << 31)), hn::ShiftLeft<30>(quadrant));
  const VecF64 x = hn::Mul(ToFloat64(rest, 0x1p31), hn::Set(d, kPi / 2 / (1 << 30)));
  const VecF64 z = hn::Mul(x, x);
  const VecF64 s = hn::Add(hn::Mul(hn::Mul(Polynomial(kSin, z), z), x), x);
  const VecF64 c = Polynomial(kCos, z);
  const auto swap = hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(du, 1)));
  // Quadrants 2 and 3 have a negative sine, 1 and 2 a negative cosine: bit 1 of the quadrant, and bit 1 of the next
  // quadrant, are the signs.
  const VecU64 bit1 = hn::Set(du, 2);
  const VecU64 sin_sign = hn::ShiftLeft<62>(hn::And(quadrant, bit1));
  const VecU64 cos_sign = hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, hn::Set(du, 1)), bit1));
  return {hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, sin_sign)),
          hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, cos_sign))};
}

// Two values of each lane from two numbers of it, in each of the kinds of values below.
struct Bits {
  using Value = uint32_t;
  using Tag = hn::Rebind<uint32_t, F64>;
  static HWY_INLINE void FromPair(VecU64 first, VecU64 second, hn::Vec<Tag>& value0, hn::Vec<Tag>& value1) {
    value0 = hn::TruncateTo(Tag(), first);
    value1 = hn::TruncateTo(Tag(), second);
  }
};

struct Normals {
  using Value = float;
  using Tag = F32;
  // Two values per lane from two numbers per lane.
  static HWY_INLINE void FromPair(VecU64 first, VecU64 second, hn::Vec<F32>& value0, hn::Vec<F32>& value1) {
    const F64 d;
    const F32 df;
    // In (0, 1): never 0, whose logarithm is infinite.
    const VecF64 uniform = hn::Mul(hn::Add(ToFloat64(first, 0), hn::Set(d, 0.5)), hn::Set(d, 0x1p-32));
    const VecF64 radius = hn::Sqrt(hn::Mul(hn::Set(d, -2), Log(uniform)));
    const SinCos angle = SinCosOfTurn(second);
    value0 = hn::DemoteTo(df, hn::Mul(radius, angle.cos));
    value1 = hn::DemoteTo(df, hn::Mul(radius, angle.sin));
  }
};

struct Uniforms {
  using Value = float;
  using Tag = F32;
  static HWY_INLINE void FromPair(VecU64 first, VecU64 second, hn::Vec<F32>& value0, hn::Vec<F32>& value1) {
    const F64 d;
    const F32 df;
    value0 = hn::DemoteTo(df, hn::Mul(ToFloat64(hn::ShiftRight<8>(first), 0), hn::Set(d, 0x1p-24)));
    value1 = hn::DemoteTo(df, hn::Mul(ToFloat64(hn::ShiftRight<8>(second), 0), hn::Set(d, 0x1p-24)));
  }
};

// Writes the values of as many blocks as a vector has lanes, starting with `block`, to `out`.
template <class Values>
HWY_INLINE void WriteBlocks(const Philox& philox, uint64_t block, typename Values::Value* out) {
  const Blocks b = PhiloxBlocks(philox.seed(), philox.sequence(), block);
  using Tag = typename Values::Tag;
  hn::Vec<Tag> value0, value1, value2, value3;
  Values::FromPair(b.c0, b.c1, value0, value1);
  Values::FromPair(b.c2, b.c3, value2, value3);
  hn::StoreInterleaved4(value0, value1, value2, value3, Tag(), out);
}

// Whole vectors of blocks are written directly to `out`. The ends, which may begin inside of a block, go through
// `values`.
template <class Values>
HWY_INLINE void Fill(const Philox& philox, uint64_t first, typename Values::Value* out, size_t n) {
  const size_t step = 4 * hn::Lanes(F64());
  size_t filled = 0;
  while (filled < n) {
    const uint64_t index = first + filled;
    const size_t skipped = index % 4;
    if (skipped == 0 && n - filled >= step) {
      WriteBlocks<Values>(philox, index / 4, out + filled);
      filled += step;
    } else {
      typename Values::Value values[4 * kMaxBlocks];
      WriteBlocks<Values>(philox, index / 4, values);
      const size_t wanted = std::min(step - skipped, n - filled);
      std::memcpy(out + filled, values + skipped, wanted * sizeof(values[0]));
      filled += wanted;
    }
  }
}

void FillBitsOnTarget(const Philox& philox, uint64_t first, uint32_t* out, size_t n) {
  Fill<Bits>(philox, first, out, n);
}

void FillUniformOnTarget(const Philox& philox, uint64_t first, float* out, size_t n) {
  Fill<Uniforms>(philox, first, out, n);
}

void FillNormalOnTarget(const Philox& philox, uint64_t first, float* out, size_t n) {
  Fill<Normals>(philox, first, out, n);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(FillBitsOnTarget);
HWY_EXPORT(FillUniformOnTarget);
HWY_EXPORT(FillNormalOnTarget);

std::array<uint32_t, 4> Philox::Block(uint64_t block) const {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                               static_cast<uint32_t>(sequence_), static_cast<uint32_t>(sequence_ >> 32)};
  uint32_t key0 = static_cast<uint32_t>(seed_);
  uint32_t key1 = static_cast<uint32_t>(seed_ >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * c[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

void FillBits(const Philox& philox, uint64_t first, absl::Span<uint32_t> out) {
  HWY_DYNAMIC_DISPATCH(FillBitsOnTarget)(philox, first, out.data(), out.size());
}

void FillUniform(const Philox& philox, uint64_t first, absl::Span<float> out) {
  HWY_DYNAMIC_DISPATCH(FillUniformOnTarget)(philox, first, out.data(), out.size());
}

void FillNormal(const Philox& philox, uint64_t first, absl::Span<float> out) {
  HWY_DYNAMIC_DISPATCH(FillNormalOnTarget)(philox, first, out.data(), out.size());
}

}  // namespace fsdp
#endif  // HWY_ONCE
