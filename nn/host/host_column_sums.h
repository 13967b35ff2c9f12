// SPDX-License-Identifier: Apache-2.0
//
// ColumnSums: sums over rows, for the gradients of biases and norm weights. At most 32 rows are summed in float32,
// those sums in float64, always in row order: accurate however many rows, and the same bits in every run with as many
// threads.
#ifndef FSDP_NN_HOST_HOST_COLUMN_SUMS_H_
#define FSDP_NN_HOST_HOST_COLUMN_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// For one sum on one thread; 12 bytes for each column.
class ColumnSums {
 public:
  static constexpr int64_t kRowsPerPartial = 32;

  // 0 columns are allowed, for a sum that is not needed.
  explicit ColumnSums(int64_t columns) : partial_(columns, 0.0f), total_(columns, 0.0) {}

  // Adds a row of float32, bfloat16 or float16. `row` may be at any address.
  void Add(DType dtype, const void* row);

  // The same in two halves, for a kernel that computes the row as it adds it: it adds to partial(), then calls RowDone.
  float* partial() { return partial_.data(); }
  void RowDone();

  // Adds the sums of `next`, whose rows follow these.
  void Append(ColumnSums next);

  // grad[j] (+)= sum of column first + j, rounded once from float32. `to` is of one of these dtypes. Call it after the
  // last row.
  void AddTo(const ParameterGrad& to, int64_t first = 0);

 private:
  // Adds the partial sums to the totals and clears them; 32 rows, or the rest.
  void Flush();

  // Rows that were added since the last Flush, at most 32.
  int64_t rows_in_partial_ = 0;
  std::vector<float> partial_;
  std::vector<double> total_;
};

// The sums of `columns` columns of rows that add(rows, sums) adds, on up to `threads` threads: each sums an interval of
// the rows, and the intervals are added in order.
ColumnSums ParallelColumnSums(int threads, int64_t rows, int64_t columns,
                              absl::FunctionRef<void(Interval rows, ColumnSums& sums)> add);

// grad_bias [N] (+)= column sums of grad_out [M, N]. Both have one of these dtypes.
void HostBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_COLUMN_SUMS_H_
