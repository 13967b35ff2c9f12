// SPDX-License-Identifier: Apache-2.0
//
// Plans are made when a call is dispatched, on the calling thread: before the work is put on the stream, the caller
// must know if cuDNN serves it, and with how much workspace. Making a plan puts nothing on a stream, so a graph may be
// captured meanwhile (captures are relaxed, cuda_stream_capture.cc).
#include "fsdp/nn/cuda/cuda_fused_attention.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/nn/cudnn/installed_cudnn.h"

namespace fsdp {
namespace {

constexpr uintptr_t kAlignment = 16;  // that cuDNN's engines were promised

bool IsAligned(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data()) % kAlignment == 0; }

void Fail(CudaStream& stream, const absl::Status& status) {
  stream.Run(
      [failure = Annotate(status, "FSDP_CUDNN=0 in the environment avoids cuDNN; its failure")] { return failure; });
}

std::string OwnKernels(const absl::Status& why) {
  return absl::StrCat("own kernels (", std::string(why.message()), ")");
}

// cuDNN on the GPU of number `ordinal`.
absl::StatusOr<std::shared_ptr<CudnnAttention>> OpenOn(int ordinal) {
  FSDP_ASSIGN_OR_RETURN(const CudnnLibrary* library, InstalledCudnn());
  int major = 0, minor = 0;
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                                  "cudaDeviceGetAttribute", ordinal));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                                  "cudaDeviceGetAttribute", ordinal));
  if (major != 9) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN ", library->Version(), " is used on compute capability 9.x only, not on ", major, ".", minor));
  }
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "cudaSetDevice", ordinal));
  return CudnnAttention::Create(*library);
}

// Plans own their kernels' code, so they must live until the work has run, and as long as a graph may replay it.
// Streams and graphs hold the buffers of work for exactly that long, so one of the buffers owns the plans.
Buffer Plans(const std::shared_ptr<CudnnAttention>& cudnn) {
  // A buffer of no bytes: only its owner matters, which goes with the last copy.
  return Buffer(cudnn.get(), 0, [cudnn] {});
}

// Puts `launch(workspace, stream)` on `stream`, unless `nbytes` or the workspace is an error.
template <typename F>
void IssueWith(const absl::StatusOr<int64_t>& nbytes, std::vector<Buffer> uses, CudaStream& stream, F launch) {
  if (!nbytes.ok()) return Fail(stream, nbytes.status());
  absl::StatusOr<Buffer> workspace = stream.Workspace(*nbytes);
  // Not cuDNN's failure, so without the advice to turn it off.
  if (!workspace.ok()) return stream.Run([status = workspace.status()] { return status; });
  uses.push_back(*workspace);
  stream.Issue(std::move(uses),
               [launch = std::move(launch), memory = workspace->data()](CUstream_st* s) { return launch(memory, s); });
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudnnAttention>> CudaFusedAttention::Open(int ordinal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Opened once: a failure is kept as well, and is not retried at every call.
  if (opened_ == nullptr) opened_ = std::make_unique<absl::StatusOr<std::shared_ptr<CudnnAttention>>>(OpenOn(ordinal));
  return *opened_;
}

std::shared_ptr<CudnnAttention> CudaFusedAttention::For(const AttentionShape& shape,
                                                        std::initializer_list<const Tensor*> operands,
                                                        CudaStream& stream) {
  if (shape.rounding != AttentionRounding::kOnline) return nullptr;
  for (const Tensor* operand : operands) {
    // A view of a flat buffer may begin at an odd place; our own kernels take it.
    if (!IsAligned(*operand)) return nullptr;
  }
  absl::StatusOr<std::shared_ptr<CudnnAttention>> opened = Open(stream.ordinal());
  return opened.ok() ? *std::move(opened) : nullptr;
}

bool CudaFusedAttention::Forward(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                                 const Tensor& statistics, CudaStream& stream) {
  const std::shared_ptr<CudnnAttention> cudnn = For(shape, {&qkv, &out, &statistics}, stream);
  if (cudnn == nullptr) return false;
  const absl::StatusOr<int64_t> nbytes = cudnn->ForwardBytes(shape, qkv.dtype());
  // Only a shape that cuDNN does not serve falls back; any other error is reported.
  if (absl::IsUnimplemented(nbytes.status())) return false;
  const CudnnAttentionForward addresses = {
      .qkv = qkv.data(), .out = out.data(), .statistics = statistics.data_as<float>()};
  IssueWith(nbytes, {Plans(cudnn), qkv.buffer(), out.buffer(), statistics.buffer()}, stream,
            [cudnn, shape, addresses, dtype = qkv.dtype()](std::byte* workspace, CUstream_st* s) {
              return cudnn->Forward(addresses, shape, dtype, workspace, s);
            });
  return true;
}

bool CudaFusedAttention::Backward(const BackwardOperands& operands, const AttentionShape& shape, CudaStream& stream) {
  const auto& [grad_out, qkv, out, statistics, grad_qkv] = operands;
  const std::shared_ptr<CudnnAttention> cudnn = For(shape, {&grad_out, &qkv, &out, &statistics, &grad_qkv}, stream);
  if (cudnn == nullptr) return false;
  const absl::StatusOr<int64_t> nbytes = cudnn->BackwardBytes(shape, qkv.dtype());
  if (absl::IsUnimplemented(nbytes.status())) return false;
  const CudnnAttentionBackward addresses = {.grad_out = grad_out.data(),
                                            .qkv = qkv.data(),
                                            .out = out.data(),
                                            .statistics = statistics.data_as<const float>(),
                                            .grad_qkv = grad_qkv.data()};
  IssueWith(nbytes,
            {Plans(cudnn), grad_out.buffer(), qkv.buffer(), out.buffer(), statistics.buffer(), grad_qkv.buffer()},
            stream, [cudnn, shape, addresses, dtype = qkv.dtype()](std::byte* workspace, CUstream_st* s) {
              return cudnn->Backward(addresses, shape, dtype, workspace, s);
            });
  return true;
}

std::string CudaFusedAttention::Describe(const AttentionShape& shape, DType dtype, int ordinal) {
  if (shape.rounding != AttentionRounding::kOnline) return "own kernels";
  const absl::StatusOr<std::shared_ptr<CudnnAttention>> opened = Open(ordinal);
  if (!opened.ok()) return OwnKernels(opened.status());
  if (const auto forward = (*opened)->ForwardBytes(shape, dtype); !forward.ok()) return OwnKernels(forward.status());
  const std::string cudnn = absl::StrCat("cuDNN ", (*opened)->version());
  const absl::StatusOr<int64_t> backward = (*opened)->BackwardBytes(shape, dtype);
  return backward.ok() ? cudnn : absl::StrCat(cudnn, " forward; backward ", OwnKernels(backward.status()));
}

}  // namespace fsdp
