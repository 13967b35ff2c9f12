// SPDX-License-Identifier: Apache-2.0
//
// The squared norm of many tensors on a CUDA device, such as all gradients of a model: a launch of partial sums over
// all of them, and one that adds the partial sums. The grid, and with it the order of summation, depends only on the
// shapes: the same bits on every GPU and in every run, but not the host's bits.
#ifndef FSDP_CUDA_SQUARED_NORM_H_
#define FSDP_CUDA_SQUARED_NORM_H_

#include <cstdint>
#include <vector>

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// The largest number of partial sums, float64, for which CudaSquaredNorm needs memory.
int64_t MaxPartialSums(size_t sources);

// *result += sum over `sources` of their elements' squares, added in float64. Float dtypes; `result` is a float32.
// `partial_sums` is device memory. The caller checks the operands, keeps the memory alive and checks the launch.
void CudaSquaredNorm(const std::vector<Tensor>& sources, const Tensor& result, double* partial_sums,
                     CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_CUDA_SQUARED_NORM_H_
