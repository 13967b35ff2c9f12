// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/peft/fused_sums.h"

#include <cstddef>

// Highway compiles what follows once for each target, as in tensor/float_kernels.cc.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/foreign/peft/fused_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One sum after the other: the rest of a row, and every sum on a processor without fused instructions. The product is
// exact in float64.
void SumsOneByOne(const float* factors, const float* terms, size_t count, size_t stride, float* sums, size_t numel) {
  for (size_t i = 0; i < numel; ++i) sums[i] = 0;
  for (size_t k = 0; k < count; ++k) {
    const double factor = factors[k];
    const float* const row = terms + k * stride;
    for (size_t i = 0; i < numel; ++i) sums[i] = static_cast<float>(sums[i] + factor * row[i]);
  }
}

#if HWY_NATIVE_FMA
// Four vectors of sums at a time stay in registers along all terms.
void SumsOnTarget(const float* factors, const float* terms, size_t count, size_t stride, float* sums, size_t numel) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= numel; i += 4 * lanes) {
    auto sum0 = hn::Zero(d);
    auto sum1 = hn::Zero(d);
    auto sum2 = hn::Zero(d);
    auto sum3 = hn::Zero(d);
    const float* row = terms + i;
    for (size_t k = 0; k < count; ++k, row += stride) {
      const auto factor = hn::Set(d, factors[k]);
      sum0 = hn::MulAdd(factor, hn::LoadU(d, row), sum0);
      sum1 = hn::MulAdd(factor, hn::LoadU(d, row + lanes), sum1);
      sum2 = hn::MulAdd(factor, hn::LoadU(d, row + 2 * lanes), sum2);
      sum3 = hn::MulAdd(factor, hn::LoadU(d, row + 3 * lanes), sum3);
    }
    hn::StoreU(sum0, d, sums + i);
    hn::StoreU(sum1, d, sums + i + lanes);
    hn::StoreU(sum2, d, sums + i + 2 * lanes);
    hn::StoreU(sum3, d, sums + i + 3 * lanes);
  }
  for (; i + lanes <= numel; i += lanes) {
    auto sum = hn::Zero(d);
    const float* row = terms + i;
    for (size_t k = 0; k < count; ++k, row += stride) {
      sum = hn::MulAdd(hn::Set(d, factors[k]), hn::LoadU(d, row), sum);
    }
    hn::StoreU(sum, d, sums + i);
  }
  SumsOneByOne(factors, terms + i, count, stride, sums + i, numel - i);
}
#else
void SumsOnTarget(const float* factors, const float* terms, size_t count, size_t stride, float* sums, size_t numel) {
  SumsOneByOne(factors, terms, count, stride, sums, numel);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(SumsOnTarget);

void FusedSums(const float* factors, const float* terms, int64_t count, int64_t stride, float* sums, int64_t numel) {
  HWY_DYNAMIC_DISPATCH(SumsOnTarget)
  (factors, terms, static_cast<size_t>(count), static_cast<size_t>(stride), sums, static_cast<size_t>(numel));
}

}  // namespace fsdp
#endif  // HWY_ONCE
