// SPDX-License-Identifier: Apache-2.0
//
// A block copies a piece of one row, element by element: neighbouring threads have neighbouring elements, which is the
// widest access that rows at odd addresses allow, and each thread has all its loads in flight before the first store.

#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_rows.h"

namespace fsdp {
namespace {

constexpr int kPerThread = 8;
constexpr int64_t kPieceColumns = int64_t{kThreads} * kPerThread;
constexpr int64_t kStrideMultiple = 64;

template <typename Bits>
__global__ void CopyPieces(const Bits* from, int64_t from_stride, Bits* to, int64_t to_stride, int64_t columns,
                           int64_t pieces) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kPieceColumns + threadIdx.x;
  Bits values[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i * kThreads < columns) values[i] = from[row * from_stride + first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i * kThreads < columns) to[row * to_stride + first + i * kThreads] = values[i];
  }
}

template <typename Bits>
void LaunchCopy(const CudaRowCopy& copy, CUstream_st* stream) {
  const int64_t pieces = (copy.columns + kPieceColumns - 1) / kPieceColumns;
  Launch(CopyPieces<Bits>, static_cast<unsigned>(copy.rows * pieces), kThreads, 0, stream,
         static_cast<const Bits*>(copy.from), copy.from_stride, static_cast<Bits*>(copy.to), copy.to_stride,
         copy.columns, pieces);
}

}  // namespace

int64_t AlignedRowStride(DType dtype, int64_t columns) {
  const int64_t size = SizeOf(dtype);
  if (size != 2 || columns * size % static_cast<int64_t>(kPackBytes) == 0) return columns;
  return (columns + kStrideMultiple - 1) / kStrideMultiple * kStrideMultiple;
}

void CudaCopyRows(const CudaRowCopy& copy, CUstream_st* stream) {
  if (copy.rows == 0 || copy.columns == 0) return;
  if (SizeOf(copy.dtype) == 2) {
    LaunchCopy<uint16_t>(copy, stream);
  } else {
    LaunchCopy<uint32_t>(copy, stream);
  }
}

}  // namespace fsdp
