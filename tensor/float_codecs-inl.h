// SPDX-License-Identifier: Apache-2.0
//
// How vectors of each float dtype are read as float32 or float64 lanes and written back, for the kernels that Highway
// compiles once per target (float_kernels.cc). Integer arithmetic on the bits instead of the targets' own
// half-precision instructions, so that every target gives the same bits, NaN included: quiet, sign kept.
//
// Two layers: a format (SmallFloat, BrainFloat) decodes codes to float32 lanes and encodes them, without touching
// memory; a codec (SmallCodec, Float32Codec, Float64Codec) loads and stores elements of one dtype as lanes of float32
// or float64. Transform combines two codecs and an operation into a loop.
//
// Include guard of Highway's kind: this file is read once per target.
#if defined(FSDP_TENSOR_FLOAT_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_TENSOR_FLOAT_CODECS_INL_H_
#undef FSDP_TENSOR_FLOAT_CODECS_INL_H_
#else
#define FSDP_TENSOR_FLOAT_CODECS_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Tags of as many lanes as `D`, which is of float32.
template <class D>
using I32 = hn::RebindToSigned<D>;
template <class D>
using U32 = hn::RebindToUnsigned<D>;

// Bits of a float32: infinity, and the bit of the mantissa that makes a NaN quiet. Every magnitude above the bits of
// infinity, compared as integers, is a NaN.
constexpr int32_t kFloat32Infinity = 0x7F800000;
constexpr int32_t kFloat32Quiet = 0x00400000;

// Float with kExponentBits + kMantissaBits + a sign in a `Storage`. kInfinities: the highest exponent holds infinity
// and NaN, as in IEEE formats; otherwise NaN is the one code of all ones (e4m3fn). The method is F. Giesen's:
// subnormals are made by one float32 addition or subtraction, whose rounding to nearest even is the required rounding.
template <typename StorageType, int kExponentBits, int kMantissaBits, bool kInfinities>
struct SmallFloat {
  using Storage = StorageType;

  // Shifts of the sign, and of the mantissa with the exponent, relative to float32. Bits of a code, from the top: sign,
  // exponent, mantissa.
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr int kShift = 23 - kMantissaBits;
  // All bits of a code but the sign.
  static constexpr int32_t kMagnitude = (1 << (kExponentBits + kMantissaBits)) - 1;
  // The bias of the format's exponent.
  static constexpr int32_t kBias = (1 << (kExponentBits - 1)) - 1;
  // The code of infinity if the format has one: the highest exponent with an empty mantissa.
  static constexpr int32_t kInfinity = kMagnitude & ~((1 << kMantissaBits) - 1);
  // The lowest code that is infinity or NaN.
  static constexpr int32_t kFirstSpecial = kInfinities ? kInfinity : kMagnitude;
  // The quiet NaN that Encode writes, PyTorch's: 0x7E00 for float16, all ones in the 8-bit formats.
  static constexpr int32_t kNaN = !kInfinities ? kMagnitude : kExponentBits == 5 && kMantissaBits == 10 ? 0x7E00 : 0x7F;
  // Without infinities overflow saturates, infinity included.
  static constexpr int32_t kOverflow = kInfinities ? kInfinity : kMagnitude - 1;
  // Magnitudes of float32 from which on all become kOverflow or NaN: twice the largest power of two, whose neighbours
  // below round up to infinity by themselves; or the largest number, 1.75 (of 3 bits, 111 being NaN) times that power.
  static constexpr int32_t kTooLarge = kInfinities ? (127 + kBias + 1) << 23 : ((127 + kBias + 1) << 23) + (0x6 << 20);
  // The smallest normal number of the format, as the bits of a float32.
  static constexpr int32_t kSmallestNormal = (127 - kBias + 1) << 23;

  // The value of each code, exactly.
  template <class D>
  static HWY_INLINE hn::Vec<D> Decode(D d, hn::Vec<U32<D>> code) {
    const I32<D> di;
    const auto signed_code = hn::BitCast(di, code);
    const auto magnitude = hn::And(signed_code, hn::Set(di, kMagnitude));
    const auto sign = hn::ShiftLeft<kSignShift>(hn::Xor(signed_code, magnitude));
    // Exponent and mantissa at float32's bit positions; the exponent still has the format's bias.
    const auto shifted = hn::ShiftLeft<kShift>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(di, (127 - kBias) << 23));
    // 1.mantissa at the exponent of subnormals, less its leading 1.
    const auto leading = hn::Set(di, kSmallestNormal);
    const auto subnormal = hn::BitCast(di, hn::Sub(hn::BitCast(d, hn::Add(shifted, leading)), hn::BitCast(d, leading)));
    // A code below the first normal one has exponent 0: it is subnormal, or zero.
    auto bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 1 << kMantissaBits)), subnormal, normal);
    const auto not_number = hn::Gt(magnitude, hn::Set(di, kInfinities ? kInfinity : kMagnitude - 1));
    // Infinity has an empty mantissa; a NaN is made quiet.
    auto special = hn::Or(shifted, hn::Set(di, kFloat32Infinity));
    special = hn::Or(special, hn::IfThenElseZero(not_number, hn::Set(di, kFloat32Quiet)));
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kFirstSpecial - 1)), special, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }

  // The code of the nearest value, ties to even, in the low bits of each lane. A value too large becomes kOverflow, NaN
  // becomes kNaN; both keep the sign.
  template <class D>
  static HWY_INLINE hn::Vec<U32<D>> Encode(D d, hn::Vec<D> value) {
    const I32<D> di;
    const U32<D> du;
    // Rounded to nearest even. All three cases (normal, subnormal, special) are computed for every lane, and the right
    // one is selected: lanes have no branches.
    const auto value_bits = hn::BitCast(di, value);
    const auto magnitude = hn::And(value_bits, hn::Set(di, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<kSignShift>(hn::BitCast(du, hn::Xor(value_bits, magnitude)));
    // To nearest even: add half of the last place less one, and one more when the last place is odd. A carry out of the
    // mantissa raises the exponent, and past the largest number makes kOverflow.
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(di, 1));
    const auto rebias = hn::Set(di, (kBias - 127) * (1 << 23) + (1 << (kShift - 1)) - 1);
    const auto normal = hn::ShiftRight<kShift>(hn::Add(hn::Add(magnitude, rebias), odd));
    // Adding this power of two puts the last place of the subnormals at the last place of float32.
    const auto magic = hn::Set(di, ((127 - kBias) + kShift + 1) << 23);
    const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic))), magic);
    auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, kSmallestNormal)), subnormal, normal);
    const auto not_number = hn::Gt(magnitude, hn::Set(di, kFloat32Infinity));
    // Values that need no rounding: NaN, infinity, and finite values that are too large.
    const auto special = hn::IfThenElse(not_number, hn::Set(di, kNaN), hn::Set(di, kOverflow));
    code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kTooLarge - 1)), special, code);
    return hn::Or(hn::BitCast(du, code), sign);
  }
};

// bfloat16: the upper half of a float32, so only rounding and NaN need care; subnormals are float32's own. A carry out
// of the mantissa raises the exponent, up to infinity, which is the right result.
struct BrainFloat {
  using Storage = uint16_t;

  // Widening is a shift.

  template <class D>
  static HWY_INLINE hn::Vec<D> Decode(D d, hn::Vec<U32<D>> code) {
    const I32<D> di;
    const auto bits = hn::BitCast(di, hn::ShiftLeft<16>(code));
    // A signalling NaN is made quiet, as arithmetic would.
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto not_number = hn::Gt(magnitude, hn::Set(di, kFloat32Infinity));
    return hn::BitCast(d, hn::Or(bits, hn::IfThenElseZero(not_number, hn::Set(di, kFloat32Quiet))));
  }

  // The upper half, rounded to nearest even: half of the last place less one is added, and one more when the last place
  // is odd. Overflow carries into infinity; a NaN becomes the quiet NaN of its sign.
  template <class D>
  static HWY_INLINE hn::Vec<U32<D>> Encode(D d, hn::Vec<D> value) {
    (void)d;
    const I32<D> di;
    const U32<D> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
    // The rounding would carry a NaN into infinity or zero.
    const auto quiet = hn::Or(hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000u))), hn::Set(du, 0x7FC0));
    const auto magnitude = hn::And(hn::BitCast(di, bits), hn::Set(di, 0x7FFFFFFF));
    const auto not_number = hn::Gt(magnitude, hn::Set(di, kFloat32Infinity));
    return hn::BitCast(du, hn::IfThenElse(not_number, hn::BitCast(di, quiet), hn::BitCast(di, rounded)));
  }
};

// float64 lanes rounded to float32, too large values to infinity. Highway's DemoteTo does it on all targets but the
// portable ones, which clamp to the largest number.
template <class D32, class V64>
HWY_INLINE hn::Vec<D32> RoundToFloat32(D32 d32, V64 value) {
  if constexpr (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128) {
    HWY_ALIGN double wide[hn::MaxLanes(d32)];
    HWY_ALIGN float narrow[hn::MaxLanes(d32)];
    hn::Store(value, hn::Rebind<double, D32>(), wide);
    // The conversion of C++ rounds to nearest even and overflows to infinity.
    for (size_t i = 0; i < hn::Lanes(d32); ++i) narrow[i] = static_cast<float>(wide[i]);
    return hn::Load(d32, narrow);
  } else {
    return hn::DemoteTo(d32, value);
  }
}

// A codec reads and writes as many elements as its tag has lanes; `at` may be unaligned. The tag selects float32 or
// float64 lanes.
template <class Format>
struct SmallCodec {
  using Storage = typename Format::Storage;
  static constexpr size_t kBytes = sizeof(Storage);  // of one element in memory

  // Widening is exact, to float32 and from there to float64.
  template <class D, HWY_IF_FLOAT(hn::TFromD<D>)>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* at) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      return hn::PromoteTo(d, Load(hn::Rebind<float, D>(), at));
    } else {
      const hn::Rebind<Storage, D> ds;
      return Format::Decode(d, hn::PromoteTo(U32<D>(), hn::LoadU(ds, reinterpret_cast<const Storage*>(at))));
    }
  }

  // float64 lanes are rounded to float32 first and then to the format, as PyTorch does: two roundings.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, uint8_t* at) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      const hn::Rebind<float, D> d32;
      Store(d32, RoundToFloat32(d32, value), at);
    } else {
      const hn::Rebind<Storage, D> ds;
      hn::StoreU(hn::TruncateTo(ds, Format::Encode(d, value)), ds, reinterpret_cast<Storage*>(at));
    }
  }
};

// float32 lanes as they are; float64 lanes are rounded.
struct Float32Codec {
  static constexpr size_t kBytes = 4;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* at) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), reinterpret_cast<const float*>(at)));
    } else {
      return hn::LoadU(d, reinterpret_cast<const float*>(at));
    }
  }

  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, uint8_t* at) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      const hn::Rebind<float, D> d32;
      hn::StoreU(RoundToFloat32(d32, value), d32, reinterpret_cast<float*>(at));
    } else {
      hn::StoreU(value, d, reinterpret_cast<float*>(at));
    }
  }
};

// For float64 lanes only: a kernel with a float64 side computes in float64.
struct Float64Codec {
  static constexpr size_t kBytes = 8;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* at) {
    return hn::LoadU(d, reinterpret_cast<const double*>(at));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, uint8_t* at) {
    hn::StoreU(value, d, reinterpret_cast<double*>(at));
  }
};

// The parameters of SmallFloat: storage, bits of the exponent, bits of the mantissa, whether the format has infinities.
using BFloat16Codec = SmallCodec<BrainFloat>;
using Float16Codec = SmallCodec<SmallFloat<uint16_t, 5, 10, true>>;
using Float8E4M3FNCodec = SmallCodec<SmallFloat<uint8_t, 4, 3, false>>;
using Float8E5M2Codec = SmallCodec<SmallFloat<uint8_t, 5, 2, true>>;

// The lanes in which a kernel between these codecs computes: float64 if either side is float64, else float32.
template <class From, class To>
using ComputeType = std::conditional_t<From::kBytes == 8 || To::kBytes == 8, double, float>;

// How far ahead of a read to prefetch: across a few pages, because the hardware's own prefetching stops at a page.
constexpr size_t kPrefetchBytes = 2048;

// to[i] = op(from[i]) for `n` elements; `from` and `to` may be equal if their elements have one size. `op` takes the
// tag and a vector of lanes, and is a lambda with HWY_ATTR, so that it is compiled for the target.
template <class From, class To, class Op>
HWY_INLINE void Transform(const uint8_t* from, uint8_t* to, size_t n, Op op) {
  // As many lanes as the target has of the wider type; the narrower side fills a part of a vector.
  const hn::ScalableTag<ComputeType<From, To>> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    // Measured: a quarter faster on large inputs that read more bytes than they write, slower on others.
    if constexpr (From::kBytes > To::kBytes) hwy::Prefetch(from + i * From::kBytes + kPrefetchBytes);
    To::Store(d, op(d, From::Load(d, from + i * From::kBytes)), to + i * To::kBytes);
  }
  if (i == n) return;
  // The rest goes through whole vectors too, so that an element's value does not depend on its place.
  HWY_ALIGN uint8_t in[hn::MaxLanes(d) * From::kBytes] = {};
  HWY_ALIGN uint8_t out[hn::MaxLanes(d) * To::kBytes];
  std::memcpy(in, from + i * From::kBytes, (n - i) * From::kBytes);
  To::Store(d, op(d, From::Load(d, in)), out);
  std::memcpy(to + i * To::kBytes, out, (n - i) * To::kBytes);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_TENSOR_FLOAT_CODECS_INL_H_
