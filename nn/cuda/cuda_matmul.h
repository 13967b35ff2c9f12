// SPDX-License-Identifier: Apache-2.0
//
// CudaMatmul: matrix products on a CUDA device by cuBLASLt, with sums in float32 (float32 operands are not rounded to
// TF32). The bias is added, and a gradient accumulated, by the product's own epilogue. Operands that no fast kernel
// could address are packed first (cuda_gemm_packing.h). The algorithm for a shape is chosen once and kept: the same in
// every run on one kind of GPU. Thread-safe.
#ifndef FSDP_NN_CUDA_CUDA_MATMUL_H_
#define FSDP_NN_CUDA_CUDA_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/ops/gemm.h"
#include "fsdp/tensor/buffer.h"

struct CUstream_st;
struct cublasLtContext;

namespace fsdp {

class CudaMatmul {
 public:
  // Bytes of workspace that Run needs, at most 416 MiB: 32 MiB for cuBLASLt, its own recommendation for current GPUs,
  // and the packed operands.
  static int64_t WorkspaceBytes(const Gemm& gemm);

  // Cheap; cuBLASLt is opened by the first Run. The destructor closes it: no product may be in progress.
  CudaMatmul();
  ~CudaMatmul();

  // Puts `gemm`, of device addresses, on `stream` of the current device; returns once it is there. `workspace` has
  // WorkspaceBytes(gemm), is aligned to 256 bytes, and must live until the product has run. kUnimplemented names a
  // shape that cuBLASLt has no algorithm for. Precondition: c_dtype is dtype, or float32 without a bias. The first
  // product of a shape takes longer, because cuBLASLt chooses an algorithm.
  absl::Status Run(const Gemm& gemm, const Buffer& workspace, CUstream_st* stream);

 private:
  // The descriptors and the algorithm for a key: sizes, strides, dtypes, transpositions, bias or accumulation,
  // alignment.
  struct Plan;
  struct PlanKey;

  // Requires mutex_. A plan lives as long as this.
  absl::StatusOr<const Plan*> PlanFor(const Gemm& gemm);
  absl::Status Multiply(const Gemm& gemm, std::byte* workspace, CUstream_st* stream);
  absl::Status Open();  // once

  std::mutex mutex_;
  cublasLtContext* handle_ = nullptr;                     // guarded by mutex_ until it is made
  std::map<PlanKey, std::unique_ptr<const Plan>> plans_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_MATMUL_H_
