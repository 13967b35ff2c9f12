// SPDX-License-Identifier: Apache-2.0
//
// Sums over rows on a CUDA device, for the gradients of biases and norm weights. In each of at most kMaxRowSplits runs
// of rows, float32 sums of at most 32 rows are added up in float64; then the runs, in order. So the result depends on
// the shape only, and is accurate however many rows there are.
#ifndef FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_
#define FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_

#include <cstdint>

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

constexpr int64_t kMaxRowSplits = 128;

// Bytes of device memory that sums over [rows, columns] need for intermediate values. 8 bytes for each column and run
// of 64 rows, of at most kMaxRowSplits runs.
int64_t ColumnSumsBytes(int64_t rows, int64_t columns);

// grad_bias [N] += column sums of grad_out [M, N]. `workspace`: ColumnSumsBytes(M, N), used until the kernels have run.
void CudaBiasBackward(const Tensor& grad_out, const Tensor& grad_bias, double* workspace, CUstream_st* stream);

// The gradients of a norm's parameters, summed over rows: grad_weight gains grad_out h with h = (x - mean) rstd,
// grad_bias gains grad_out. An undefined gradient is left out. Without `mean` (null) the mean is 0, and h and the
// product are rounded to the dtype, as RMS norm has it. `workspace`: twice ColumnSumsBytes.
void CudaNormParameterGrads(const Tensor& grad_out, const Tensor& x, const double* mean, const double* rstd,
                            const Tensor& grad_weight, const Tensor& grad_bias, double* workspace, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_
