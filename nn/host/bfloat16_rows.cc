// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/bfloat16_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/bfloat16_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

void WidenKernel(const Rows& from, float* to) {
  const FloatTag d;
  for (int64_t r = 0; r < from.rows; ++r) {
    const uint16_t* source = from.data + r * from.stride;
    float* row = to + r * from.cols;
    ForEachVector(from.cols, [&](int64_t i, size_t count)
                                 HWY_ATTR { StoreUpTo(d, LoadUpTo(d, source + i, count), row + i, count); });
  }
}

void RoundKernel(const float* from, const Rows& to) {
  const FloatTag d;
  for (int64_t r = 0; r < to.rows; ++r) {
    const float* row = from + r * to.cols;
    uint16_t* destination = to.data + r * to.stride;
    ForEachVector(to.cols, [&](int64_t i, size_t count)
                               HWY_ATTR { StoreUpTo(d, LoadUpTo(d, row + i, count), destination + i, count); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(WidenKernel);
HWY_EXPORT(RoundKernel);

void WidenRows(const Rows& from, float* to) { HWY_DYNAMIC_DISPATCH(WidenKernel)(from, to); }

void RoundRows(const float* from, const Rows& to) { HWY_DYNAMIC_DISPATCH(RoundKernel)(from, to); }

}  // namespace fsdp
#endif  // HWY_ONCE
