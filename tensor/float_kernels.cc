// SPDX-License-Identifier: Apache-2.0
//
// The loops over floats. Dispatch is in three steps: Highway chooses the code for this processor
// (HWY_DYNAMIC_DISPATCH), a switch turns the dtypes into codecs (ConvertFrom, WithCodec), and a template makes the loop
// for a pair of codecs.
//
// Every target gives the same bits. For elementwise loops that follows from the codecs and from compiling without
// contraction to fused multiply-adds (SAME_BITS_COPTS in BUILD.bazel). For the squared norm it needs a fixed tree of
// additions, which SquaredNorm has: the targets' vectors differ in width, so each target fills the same 16 partial
// sums, several lanes at a time.

#include "fsdp/tensor/float_kernels.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "fsdp/base/check.h"

// Highway compiles what follows once for each target: AVX-512, AVX2 and the portable baseline. Targets between them
// would cost build time and serve no machine of the last ten years.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/float_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

//
#include "fsdp/tensor/float_codecs-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

template <class From, class To>
void ConvertPair(const uint8_t* from, uint8_t* to, size_t n) {
  if constexpr (!std::is_same_v<From, To>) {
    Transform<From, To>(from, to, n, [](auto, auto value) HWY_ATTR { return value; });
  }
}

template <class From>
void ConvertFrom(const uint8_t* from, DType to_dtype, uint8_t* to, size_t n) {
  switch (to_dtype) {
    case DType::kFloat64:
      return ConvertPair<From, Float64Codec>(from, to, n);
    case DType::kFloat32:
      return ConvertPair<From, Float32Codec>(from, to, n);
    case DType::kBFloat16:
      return ConvertPair<From, BFloat16Codec>(from, to, n);
    case DType::kFloat16:
      return ConvertPair<From, Float16Codec>(from, to, n);
    case DType::kFloat8E4M3FN:
      return ConvertPair<From, Float8E4M3FNCodec>(from, to, n);
    case DType::kFloat8E5M2:
      return ConvertPair<From, Float8E5M2Codec>(from, to, n);
    default:
      Check(false, "ConvertFloats to a dtype that is not a float");
  }
}

void ConvertFloatsOnTarget(DType from_dtype, const uint8_t* from, DType to_dtype, uint8_t* to, size_t n) {
  switch (from_dtype) {
    case DType::kFloat64:
      return ConvertFrom<Float64Codec>(from, to_dtype, to, n);
    case DType::kFloat32:
      return ConvertFrom<Float32Codec>(from, to_dtype, to, n);
    case DType::kBFloat16:
      return ConvertFrom<BFloat16Codec>(from, to_dtype, to, n);
    case DType::kFloat16:
      return ConvertFrom<Float16Codec>(from, to_dtype, to, n);
    case DType::kFloat8E4M3FN:
      return ConvertFrom<Float8E4M3FNCodec>(from, to_dtype, to, n);
    case DType::kFloat8E5M2:
      return ConvertFrom<Float8E5M2Codec>(from, to_dtype, to, n);
    default:
      Check(false, "ConvertFloats from a dtype that is not a float");
  }
}

// Calls `f` with the codec of `dtype`.
template <class F>
HWY_INLINE auto WithCodec(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(Float64Codec());
    case DType::kFloat32:
      return f(Float32Codec());
    case DType::kBFloat16:
      return f(BFloat16Codec());
    case DType::kFloat16:
      return f(Float16Codec());
    default:
      CheckFailed("a kernel for a dtype that it does not take", __FILE__, __LINE__);
  }
}

const uint8_t* BytesOf(ConstElements e) { return static_cast<const uint8_t*>(e.data); }
uint8_t* BytesOf(MutableElements e) { return static_cast<uint8_t*>(e.data); }

void CastDivideOnTarget(ConstElements source, MutableElements destination, size_t n, double divisor) {
  WithCodec(source.dtype, [&](auto from) HWY_ATTR {
    WithCodec(destination.dtype, [&](auto to) HWY_ATTR {
      using From = decltype(from);
      using To = decltype(to);
      const auto divide = [divisor](auto d, auto value) HWY_ATTR {
        return hn::Div(value, hn::Set(d, static_cast<hn::TFromD<decltype(d)>>(divisor)));
      };
      Transform<From, To>(BytesOf(source), BytesOf(destination), n, divide);
    });
  });
}

void ScaleOnTarget(MutableElements t, size_t n, float factor) {
  WithCodec(t.dtype, [&](auto codec) HWY_ATTR {
    using Codec = decltype(codec);
    const auto multiply = [factor](auto d, auto value)
                              HWY_ATTR { return hn::Mul(value, hn::Set(d, hn::TFromD<decltype(d)>{factor})); };
    Transform<Codec, Codec>(BytesOf(t), BytesOf(t), n, multiply);
  });
}

template <class From, class To>
void AccumulatePair(const uint8_t* from, uint8_t* to, size_t n) {
  const hn::ScalableTag<ComputeType<From, To>> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    uint8_t* at = to + i * To::kBytes;
    To::Store(d, hn::Add(To::Load(d, at), From::Load(d, from + i * From::kBytes)), at);
  }
  if (i == n) return;
  // The rest through full vectors in zeroed memory: loads and stores beyond the end would fault or race.
  HWY_ALIGN uint8_t addend[hn::MaxLanes(d) * From::kBytes] = {};
  HWY_ALIGN uint8_t sum[hn::MaxLanes(d) * To::kBytes] = {};
  std::memcpy(addend, from + i * From::kBytes, (n - i) * From::kBytes);
  std::memcpy(sum, to + i * To::kBytes, (n - i) * To::kBytes);
  To::Store(d, hn::Add(To::Load(d, sum), From::Load(d, addend)), sum);
  std::memcpy(to + i * To::kBytes, sum, (n - i) * To::kBytes);
}

void AccumulateOnTarget(ConstElements source, MutableElements destination, size_t n) {
  WithCodec(source.dtype, [&](auto from) HWY_ATTR {
    WithCodec(destination.dtype, [&](auto to) HWY_ATTR {
      AccumulatePair<decltype(from), decltype(to)>(BytesOf(source), BytesOf(destination), n);
    });
  });
}

// Element i is added to partial sum i % 16 on every target, whatever its vectors hold, and the partial sums are added
// pairwise: so the result has the same bits everywhere.
constexpr size_t kPartialSums = 16;

template <class From>
double SquaredNorm(const uint8_t* from, size_t n) {
  const hn::CappedTag<double, kPartialSums / 2> d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN double sums[kPartialSums] = {};
  const auto add_from = [&](const uint8_t* at, size_t blocks) HWY_ATTR {
    // Two vectors at a time stay in registers along the whole input: `sums` is passed over once per pair.
    for (size_t lane = 0; lane < kPartialSums; lane += 2 * lanes) {
      auto sum0 = hn::Load(d, sums + lane);
      auto sum1 = hn::Load(d, sums + lane + lanes);
      for (size_t block = 0; block < blocks; ++block) {
        const uint8_t* block_at = at + (block * kPartialSums + lane) * From::kBytes;
        const auto value0 = From::Load(d, block_at);
        const auto value1 = From::Load(d, block_at + lanes * From::kBytes);
        sum0 = hn::Add(sum0, hn::Mul(value0, value0));
        sum1 = hn::Add(sum1, hn::Mul(value1, value1));
      }
      hn::Store(sum0, d, sums + lane);
      hn::Store(sum1, d, sums + lane + lanes);
    }
  };
  // Pieces that stay in the first-level cache between the passes of add_from.
  constexpr size_t kPiece = 1024;
  const size_t whole = n / kPartialSums * kPartialSums;
  for (size_t i = 0; i < whole; i += kPiece) {
    add_from(from + i * From::kBytes, HWY_MIN(kPiece, whole - i) / kPartialSums);
  }
  if (whole < n) {
    // Zeros add nothing.
    HWY_ALIGN uint8_t rest[kPartialSums * From::kBytes] = {};
    std::memcpy(rest, from + whole * From::kBytes, (n - whole) * From::kBytes);
    add_from(rest, 1);
  }
  for (size_t width = kPartialSums / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

double SquaredNormOnTarget(ConstElements source, size_t n) {
  return WithCodec(source.dtype, [&](auto from) HWY_ATTR { return SquaredNorm<decltype(from)>(BytesOf(source), n); });
}

template <class From>
bool AllFiniteOf(const uint8_t* from, size_t n) {
  const hn::ScalableTag<ComputeType<From, From>> d;
  const size_t lanes = hn::Lanes(d);
  auto differences = hn::Zero(d);  // x - x is 0 but for infinities and NaN, of which it is NaN, and a NaN stays
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto value = From::Load(d, from + i * From::kBytes);
    differences = hn::Add(differences, hn::Sub(value, value));
  }
  if (i < n) {
    HWY_ALIGN uint8_t rest[hn::MaxLanes(d) * From::kBytes] = {};
    std::memcpy(rest, from + i * From::kBytes, (n - i) * From::kBytes);
    const auto value = From::Load(d, rest);
    differences = hn::Add(differences, hn::Sub(value, value));
  }
  return hn::AllTrue(d, hn::Eq(differences, hn::Zero(d)));
}

bool AllFiniteOnTarget(ConstElements t, size_t n) {
  return WithCodec(t.dtype, [&](auto from) HWY_ATTR { return AllFiniteOf<decltype(from)>(BytesOf(t), n); });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(ConvertFloatsOnTarget);
HWY_EXPORT(CastDivideOnTarget);
HWY_EXPORT(AccumulateOnTarget);
HWY_EXPORT(ScaleOnTarget);
HWY_EXPORT(SquaredNormOnTarget);
HWY_EXPORT(AllFiniteOnTarget);

void ConvertFloats(DType from, const void* source, DType to, void* destination, int64_t numel) {
  // Equal dtypes have no instance (ConvertPair).
  Check(from != to, "ConvertFloats between equal dtypes");
  HWY_DYNAMIC_DISPATCH(ConvertFloatsOnTarget)
  (from, static_cast<const uint8_t*>(source), to, static_cast<uint8_t*>(destination), static_cast<size_t>(numel));
}

void CastDivideFloats(ConstElements source, MutableElements destination, int64_t numel, double divisor) {
  HWY_DYNAMIC_DISPATCH(CastDivideOnTarget)(source, destination, static_cast<size_t>(numel), divisor);
}

void AccumulateFloats(ConstElements source, MutableElements destination, int64_t numel) {
  HWY_DYNAMIC_DISPATCH(AccumulateOnTarget)(source, destination, static_cast<size_t>(numel));
}

void ScaleFloats(MutableElements t, int64_t numel, float factor) {
  HWY_DYNAMIC_DISPATCH(ScaleOnTarget)(t, static_cast<size_t>(numel), factor);
}

double SquaredNormOfFloats(ConstElements source, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(SquaredNormOnTarget)(source, static_cast<size_t>(numel));
}

bool AllFinite(ConstElements t, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(AllFiniteOnTarget)(t, static_cast<size_t>(numel));
}

}  // namespace fsdp
#endif  // HWY_ONCE
