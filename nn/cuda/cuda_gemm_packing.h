// SPDX-License-Identifier: Apache-2.0
//
// GemmPacking: the operands of a product that are copied to aligned rows before it, and back after it. A product of
// tensor cores is several times slower if a row of any operand begins at an address that is not a multiple of 16 bytes:
// a weight whose last dimension is not a multiple of 8, or a parameter at an odd place of its unit's flat buffer.
//
//   const GemmPacking packing(gemm);
//   const Gemm packed = packing.In(memory, stream);   // copies
//   ... the product `packed` ...
//   packing.Out(packed, stream);                      // copies the result, if it was packed
#ifndef FSDP_NN_CUDA_CUDA_GEMM_PACKING_H_
#define FSDP_NN_CUDA_CUDA_GEMM_PACKING_H_

#include <cstddef>
#include <cstdint>

#include "fsdp/nn/ops/gemm.h"

struct CUstream_st;

namespace fsdp {

// Which operands are packed depends on the shape of the product and on which operands are misaligned. Not packed are
// small products, which take less time than the copies; float32, which tensor cores do not compute, and float32
// results; and operands above kMaxOperandBytes, so that the memory is bounded. A packed product has the same bits as
// one of aligned operands.
class GemmPacking {
 public:
  static constexpr int64_t kMaxOperandBytes = int64_t{128} << 20;

  explicit GemmPacking(const Gemm& gemm);

  // Device memory that In needs: 0 if nothing is packed, at most 3 * kMaxOperandBytes.
  int64_t nbytes() const { return a_.nbytes + b_.nbytes + c_.nbytes; }

  // Puts the copies on `stream`, into `memory`, which is aligned to 256 bytes, and returns the product of the copies.
  Gemm In(std::byte* memory, CUstream_st* stream) const;
  // Puts the copy of the result of `packed`, which In returned, on `stream`.
  void Out(const Gemm& packed, CUstream_st* stream) const;

 private:
  // A matrix in memory; nbytes is 0 if it is not copied.
  struct Operand {
    const void* data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t stride = 0;
    int64_t nbytes = 0;
  };

  static Operand Pack(Operand operand, DType dtype);
  void CopyIn(const Operand& operand, std::byte* memory, CUstream_st* stream) const;

  Gemm gemm_;
  Operand a_, b_, c_;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_GEMM_PACKING_H_
