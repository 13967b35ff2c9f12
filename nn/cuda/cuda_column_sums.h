// SPDX-License-Identifier: Apache-2.0
//
// Sums over rows on a CUDA device, for the gradients of biases and norm weights: kernels that each sum a run of rows in
// float32, of at most 32 rows for each thread, and one that adds the runs in float64. So the result depends on the
// shape only, and is accurate however many rows there are.
#ifndef FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_
#define FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_

#include <array>
#include <cstdint>

#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Bytes of device memory that sums over [rows, columns] need for intermediate values: 4 bytes for each column and run
// of 64 rows, or of up to 256 rows if there are more than 8,192.
int64_t ColumnSumsBytes(int64_t rows, int64_t columns);

// grad_bias [N] (+)= column sums of grad_out [M, N], whose rows may be padded. `workspace`: ColumnSumsBytes(M, N), used
// until the kernels have run.
void CudaBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, float* workspace, CUstream_st* stream);

// For each of `grads` [columns] that is defined, all of one dtype: grad (+)= sum over `runs` of `partial`, in float64
// and in an order that depends on `runs` only, rounded once. partial [grads.size(), runs, columns].
void CudaAddPartialSums(const float* partial, int64_t runs, int64_t columns, const std::array<ParameterGrad, 2>& grads,
                        CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_COLUMN_SUMS_H_
