// SPDX-License-Identifier: Apache-2.0
//
// Rows of matrices whose beginnings are aligned, for products. A GPU's copy engines and its widest loads take addresses
// that are multiples of 16 bytes, and cuBLASLt has fast kernels only for matrices all of whose rows begin at such
// addresses. Rows of another length are therefore padded, or copied to padded memory.
#ifndef FSDP_NN_CUDA_CUDA_ROWS_H_
#define FSDP_NN_CUDA_CUDA_ROWS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

struct CUstream_st;

namespace fsdp {

// The distance at which rows of `columns` elements are aligned: `columns` if contiguous rows are aligned, else the next
// multiple of 64, so that rows of 16 bits begin at cache lines. Products of float32 do not use tensor cores and gain
// nothing: their rows follow each other.
int64_t AlignedRowStride(DType dtype, int64_t columns);

// Rows to be copied to another distance from each other. Strides are numbers of elements; the memory does not overlap.
struct CudaRowCopy {
  const void* from = nullptr;
  int64_t from_stride = 0;
  void* to = nullptr;
  int64_t to_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::kFloat32;  // of 16 or 32 bits
};

// Puts the copy on `stream`; the padding between rows is not written.
void CudaCopyRows(const CudaRowCopy& copy, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ROWS_H_
