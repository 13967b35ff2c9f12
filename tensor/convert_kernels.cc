// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/convert_kernels.h"

#include <cstring>
#include <type_traits>

#include "fsdp/base/check.h"

// Highway compiles what follows once for each target: AVX-512, AVX2 and the portable baseline. Targets between them
// would cost build time and serve no machine of the last ten years.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/convert_kernels.cc"
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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(ConvertFloatsOnTarget);

void ConvertFloats(DType from, const void* source, DType to, void* destination, int64_t numel) {
  Check(from != to, "ConvertFloats between equal dtypes");
  HWY_DYNAMIC_DISPATCH(ConvertFloatsOnTarget)
  (from, static_cast<const uint8_t*>(source), to, static_cast<uint8_t*>(destination), static_cast<size_t>(numel));
}

}  // namespace fsdp
#endif  // HWY_ONCE
