// SPDX-License-Identifier: Apache-2.0
//
// Vector loads and stores of float32, bfloat16 and float16 elements as float32 lanes, for kernels written with Highway:
//
//   const FloatTag d;
//   ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
//     StoreUpTo(d, hn::Mul(LoadUpTo(d, x + i, count), hn::Set(d, scale)), out + i, count);
//   });
//
// Included once per instruction set (see hwy/foreach_target.h), hence the guard that toggles. No address need be
// aligned. An element's result never depends on its place in a vector, so a tail gives the same bits as the main loop.
#if defined(FSDP_TENSOR_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_TENSOR_SIMD_INL_H_
#undef FSDP_TENSOR_SIMD_INL_H_
#else
#define FSDP_TENSOR_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/float16_bits.h"
#include "fsdp/tensor/float_codecs-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// As many lanes as the target's vectors hold: 1 (scalar), 4, 8 or 16. Every kernel that uses these functions computes
// in float32.
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// Elements in memory are float, uint16_t for the bits of a bfloat16, or Float16Bits. Any bits are loaded: a NaN stays a
// NaN. These functions read a whole vector of elements, which is 32 or 16 bits times the lanes. Widening is exact.
HWY_INLINE FloatVec LoadFloats(FloatTag d, const float* p) { return hn::LoadU(d, p); }

HWY_INLINE FloatVec LoadFloats(FloatTag d, const uint16_t* p) {
  // As many lanes of 16 bits as there are of 32: half a vector.
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::RebindToUnsigned<FloatTag> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

// The same bits on every target, as in tensor/convert_elements.h.
using Float16Format = SmallFloat<uint16_t, 5, 10, true>;

HWY_INLINE FloatVec LoadFloats(FloatTag d, const Float16Bits* p) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::RebindToUnsigned<FloatTag> d32;
  return Float16Format::Decode(d, hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p))));
}

// Write a whole vector of elements; to 16 bits each lane is rounded to the nearest, ties to even.
HWY_INLINE void StoreFloats(FloatTag d, FloatVec v, float* p) { hn::StoreU(v, d, p); }

// The bits of `v` rounded to the nearest bfloat16, ties to even, in the upper half of each lane; the lower half is left
// over. A NaN stays a NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag> > BFloat16Bits(FloatVec v) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto bits = hn::BitCast(d32, v);
  // To nearest even: half of the last place less one is added, and one more when the last place is odd.
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
  // Rounding could carry a NaN into infinity, so a NaN is only made quiet and keeps its upper bits.
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE void StoreFloats(FloatTag, FloatVec v, uint16_t* p) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::RebindToSigned<FloatTag> d32_signed;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32_signed, hn::ShiftRight<16>(BFloat16Bits(v)))), d16, p);
}

HWY_INLINE void StoreFloats(FloatTag d, FloatVec v, Float16Bits* p) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  hn::StoreU(hn::TruncateTo(d16, Float16Format::Encode(d, v)), d16, reinterpret_cast<uint16_t*>(p));
}

// The value that an element T in memory would hold for `v`. For a sum that must be rounded as if each step went through
// memory.
template <typename T>
HWY_INLINE FloatVec RoundTo(FloatTag d, FloatVec v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return v;
  } else if constexpr (std::is_same_v<T, Float16Bits>) {
    return Float16Format::Decode(d, Float16Format::Encode(d, v));
  } else {
    const hn::RebindToUnsigned<FloatTag> d32;
    return hn::BitCast(d, hn::And(BFloat16Bits(v), hn::Set(d32, 0xFFFF0000u)));
  }
}

// The first `count` of a vector's elements; the other lanes are `fill`. `count` is from 0 to the number of lanes; no
// element beyond `count` is read.
template <typename T>
HWY_INLINE FloatVec LoadUpTo(FloatTag d, const T* p, size_t count, float fill = 0.0f) {
  if (count == hn::Lanes(d)) return LoadFloats(d, p);
  // A partial vector goes through the stack, so that no byte outside of the elements is touched.
  T lanes[hn::MaxLanes(d)];
  StoreFloats(d, hn::Set(d, fill), lanes);
  std::memcpy(lanes, p, count * sizeof(T));
  return LoadFloats(d, lanes);
}

// Writes the first `count` lanes and nothing beyond. `count` is from 0 to the number of lanes.
template <typename T>
HWY_INLINE void StoreUpTo(FloatTag d, FloatVec v, T* p, size_t count) {
  if (count == hn::Lanes(d)) return StoreFloats(d, v, p);
  T lanes[hn::MaxLanes(d)];
  StoreFloats(d, v, lanes);
  std::memcpy(p, lanes, count * sizeof(T));
}

// Calls f with a value of the type that elements of `dtype` have in memory: float, uint16_t for bfloat16, Float16Bits.
// The one switch on the dtype, outside of all loops. Precondition: one of the three.
template <typename F>
HWY_INLINE void WithElementType(DType dtype, const F& f) {
  if (dtype == DType::kBFloat16) return f(uint16_t{0});
  if (dtype == DType::kFloat16) return f(Float16Bits{0});
  f(float{0});
}

// Calls body(i, count) for i = 0, Lanes, 2 Lanes, ... below n, in ascending order; count is Lanes, except in the last
// call, which gets the rest. Not called if n is 0. The body must be a lambda with HWY_ATTR.
template <typename Body>
HWY_INLINE void ForEachVector(int64_t n, const Body& body) {
  // The number of lanes is known at run time only on some targets, so it is not a constant here.
  const size_t lanes = hn::Lanes(FloatTag());
  const int64_t step = static_cast<int64_t>(lanes);
  int64_t i = 0;
  for (; i + step <= n; i += step) body(i, lanes);
  if (i < n) body(i, static_cast<size_t>(n - i));
}

// A sum of float lanes in float64, one sum for each lane; Total adds the lanes. The order of summation thus depends on
// the width of the target's vectors. For a sum that must have the same bits on every target see float_kernels.cc.
class DoubleSum {
 public:
// The scalar target has one lane and so one sum.
#if HWY_TARGET == HWY_SCALAR  // has no halves of vectors
  HWY_INLINE void Add(FloatVec v) { low_ += static_cast<double>(hn::GetLane(v)); }
  HWY_INLINE double Total() const { return low_; }

 private:
  double low_ = 0;
#else
  // The sum is 0. Each lane of `v` is widened exactly and added to the sum of its lane; low_ takes the lower half of
  // the lanes, high_ the upper half.
  HWY_INLINE DoubleSum() : low_(hn::Zero(DoubleTag())), high_(hn::Zero(DoubleTag())) {}
  HWY_INLINE void Add(FloatVec v) {
    const hn::Half<FloatTag> half;
    low_ = hn::Add(low_, hn::PromoteTo(DoubleTag(), hn::LowerHalf(half, v)));
    high_ = hn::Add(high_, hn::PromoteTo(DoubleTag(), hn::UpperHalf(half, v)));
  }
  // Adds both halves, then the lanes.
  HWY_INLINE double Total() const { return hn::GetLane(hn::SumOfLanes(DoubleTag(), hn::Add(low_, high_))); }

 private:
  using DoubleTag = hn::Rebind<double, hn::Half<FloatTag> >;
  hn::Vec<DoubleTag> low_;
  hn::Vec<DoubleTag> high_;
#endif
};

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_TENSOR_SIMD_INL_H_
