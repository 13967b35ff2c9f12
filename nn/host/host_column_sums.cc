// SPDX-License-Identifier: Apache-2.0
//
// Why two levels: a float32 sum of many rows loses digits (its error grows with the number of rows), and float64 for
// every element would halve the vector width. So at most 32 rows are added in float32, with the error of 32 terms, and
// the partial sums are added in float64. Rows are added in ascending order on every instruction set: lanes are columns,
// so the width of a vector changes nothing.
#include "fsdp/nn/host/host_column_sums.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "fsdp/nn/host/kernel_grain.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/kernel_threads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_column_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

template <typename T>
void AddRowLoop(const T* row, float* sums, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    StoreUpTo(d, hn::Add(LoadUpTo(d, sums + i, count), LoadUpTo(d, row + i, count)), sums + i, count);
  });
}

void AddRow(DType dtype, const void* row, float* sums, int64_t n) {
  WithElementType(dtype,
                  [&](auto element) HWY_ATTR { AddRowLoop(static_cast<const decltype(element)*>(row), sums, n); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(AddRow);

void ColumnSums::Add(DType dtype, const void* row) {
  HWY_DYNAMIC_DISPATCH(AddRow)(dtype, row, partial_.data(), static_cast<int64_t>(partial_.size()));
  RowDone();
}

void ColumnSums::RowDone() {
  if (++rows_in_partial_ == kRowsPerPartial) Flush();
}

void ColumnSums::Flush() {
  for (size_t j = 0; j < partial_.size(); ++j) {
    total_[j] += static_cast<double>(partial_[j]);
    partial_[j] = 0;
  }
  rows_in_partial_ = 0;
}

// Rounds to float32 and then, in 16 bits, the sum with the old gradient once more: as accumulating a float32 gradient
// into one of 16 bits does. A replaced gradient has the bits of a sum with 0.
void ColumnSums::AddTo(const ParameterGrad& to, int64_t first) {
  Flush();
  const Tensor& grad = to.grad;
  for (int64_t j = 0; j < grad.numel(); ++j) {
    const float sum = static_cast<float>(total_[first + j]);
    if (grad.dtype() == DType::kBFloat16) {
      uint16_t& element = grad.data_as<uint16_t>()[j];
      element = FloatToBFloat16((to.accumulate ? BFloat16ToFloat(element) : 0.0f) + sum);
    } else if (grad.dtype() == DType::kFloat16) {
      uint16_t& element = grad.data_as<uint16_t>()[j];
      element = FloatToFloat16((to.accumulate ? Float16ToFloat(element) : 0.0f) + sum);
    } else {
      float& element = grad.data_as<float>()[j];
      element = (to.accumulate ? element : 0.0f) + sum;
    }
  }
}

void ColumnSums::Append(ColumnSums next) {
  Flush();
  next.Flush();
  for (size_t j = 0; j < total_.size(); ++j) total_[j] += next.total_[j];
}

ColumnSums ParallelColumnSums(int threads, int64_t rows, int64_t columns,
                              absl::FunctionRef<void(Interval rows, ColumnSums& sums)> add) {
  ColumnSums sums(columns);
  std::vector<ColumnSums> next(std::max(0, NumPieces(threads, rows, RowGrain(columns)) - 1), ColumnSums(columns));
  ParallelFor(threads, rows, RowGrain(columns),
              [&](int piece, Interval interval) { add(interval, piece == 0 ? sums : next[piece - 1]); });
  for (ColumnSums& piece : next) sums.Append(std::move(piece));
  return sums;
}

void HostBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, int threads) {
  const int64_t columns = grad_bias.grad.numel();
  const int64_t rows = columns == 0 ? 0 : grad_out.numel() / columns;
  const int64_t row_bytes = columns * SizeOf(grad_out.dtype());
  ParallelColumnSums(threads, rows, columns, [&](Interval interval, ColumnSums& sums) {
    for (int64_t r = interval.begin; r < interval.end; ++r) {
      sums.Add(grad_out.dtype(), static_cast<const std::byte*>(grad_out.data()) + r * row_bytes);
    }
  }).AddTo(grad_bias);
}

}  // namespace fsdp
#endif  // HWY_ONCE
