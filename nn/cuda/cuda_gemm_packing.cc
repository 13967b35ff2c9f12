// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cuda/cuda_gemm_packing.h"

#include "fsdp/nn/cuda/cuda_gemm_parts.h"
#include "fsdp/nn/cuda/cuda_rows.h"

namespace fsdp {
namespace {

constexpr int64_t kAccessBytes = 16;
constexpr int64_t kPlaceBytes = 256;  // every packed operand begins at a multiple of it

}  // namespace

GemmPacking::GemmPacking(const Gemm& gemm) : gemm_(gemm) {
  if (!IsLargeTensorCoreProduct(gemm)) return;
  a_ = Pack({gemm.a, gemm.transpose_a ? gemm.k : gemm.m, gemm.transpose_a ? gemm.m : gemm.k, gemm.lda}, gemm.dtype);
  b_ = Pack({gemm.b, gemm.transpose_b ? gemm.n : gemm.k, gemm.transpose_b ? gemm.k : gemm.n, gemm.ldb}, gemm.dtype);
  if (gemm.c_dtype == gemm.dtype) c_ = Pack({gemm.c, gemm.m, gemm.n, gemm.ldc}, gemm.dtype);
}

// The operand, with the size of its copy if its rows are not aligned and it is not too large.
GemmPacking::Operand GemmPacking::Pack(Operand operand, DType dtype) {
  const bool aligned = reinterpret_cast<uintptr_t>(operand.data) % kAccessBytes == 0 &&
                       operand.stride * SizeOf(dtype) % kAccessBytes == 0;
  const int64_t nbytes = operand.rows * AlignedRowStride(dtype, operand.columns) * SizeOf(dtype);
  if (!aligned && nbytes <= kMaxOperandBytes) operand.nbytes = (nbytes + kPlaceBytes - 1) / kPlaceBytes * kPlaceBytes;
  return operand;
}

void GemmPacking::CopyIn(const Operand& operand, std::byte* memory, CUstream_st* stream) const {
  CudaCopyRows({.from = operand.data,
                .from_stride = operand.stride,
                .to = memory,
                .to_stride = AlignedRowStride(gemm_.dtype, operand.columns),
                .rows = operand.rows,
                .columns = operand.columns,
                .dtype = gemm_.dtype},
               stream);
}

Gemm GemmPacking::In(std::byte* memory, CUstream_st* stream) const {
  Gemm packed = gemm_;
  if (a_.nbytes > 0) {
    CopyIn(a_, memory, stream);
    packed.a = memory;
    packed.lda = AlignedRowStride(gemm_.dtype, a_.columns);
    memory += a_.nbytes;
  }
  if (b_.nbytes > 0) {
    CopyIn(b_, memory, stream);
    packed.b = memory;
    packed.ldb = AlignedRowStride(gemm_.dtype, b_.columns);
    memory += b_.nbytes;
  }
  if (c_.nbytes > 0) {
    if (gemm_.accumulate) CopyIn(c_, memory, stream);
    packed.c = memory;
    packed.ldc = AlignedRowStride(gemm_.dtype, c_.columns);
  }
  return packed;
}

void GemmPacking::Out(const Gemm& packed, CUstream_st* stream) const {
  if (c_.nbytes == 0) return;
  CudaCopyRows({.from = packed.c,
                .from_stride = packed.ldc,
                .to = gemm_.c,
                .to_stride = gemm_.ldc,
                .rows = c_.rows,
                .columns = c_.columns,
                .dtype = gemm_.dtype},
               stream);
}

}  // namespace fsdp
