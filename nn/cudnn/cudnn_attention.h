// SPDX-License-Identifier: Apache-2.0
//
// CudnnAttention: causal attention in 16 bits by cuDNN's fused kernels, on the layout of LayerOps::CausalAttention: q,
// k and v are views of qkv, and nothing is copied. Probabilities are rounded before they are normalised, and the
// statistics are one logarithm for each row, as under AttentionRounding::kOnline.
//
// Results are the same in every run: engines are chosen by cuDNN's heuristics, never by timing, and the graph of
// backward leaves no room for atomic additions. The price is backward's workspace, which has a gradient for each query
// and key. To bound it, backward runs piece by piece, over samples and, if one sample is too large, over heads; the
// pieces depend on the shape only. Work on streams may be captured in CUDA graphs. Thread-safe.
#ifndef FSDP_NN_CUDNN_CUDNN_ATTENTION_H_
#define FSDP_NN_CUDNN_CUDNN_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/cudnn/cudnn_attention_graphs.h"
#include "fsdp/nn/cudnn/cudnn_graph.h"
#include "fsdp/nn/cudnn/cudnn_library.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/dtype.h"

struct CUstream_st;

namespace fsdp {

// Addresses on the device, aligned to 16 bytes; `out` and `statistics` are results of forward, and operands of
// backward.
struct CudnnAttentionForward {
  const void* qkv = nullptr;
  void* out = nullptr;
  float* statistics = nullptr;
};

struct CudnnAttentionBackward {
  const void* grad_out = nullptr;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const float* statistics = nullptr;
  void* grad_qkv = nullptr;
};

class CudnnAttention {
 public:
  // Memory that the engines may use for the gradients of one piece's scores, unless Create overrides it.
  static constexpr int64_t kMaxGradScoresBytes = int64_t{256} << 20;

  // Opens cuDNN on the current device. `library` must outlive the object.
  static absl::StatusOr<std::unique_ptr<CudnnAttention>> Create(const CudnnLibrary& library,
                                                                int64_t max_grad_scores_bytes = kMaxGradScoresBytes);

  // No work may be in progress, and none may be replayed afterwards.
  ~CudnnAttention();

  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // cuDNN's, "9.19.0".
  std::string version() const { return library_.Version(); }

  // The workspace of one call, in bytes; kUnimplemented if cuDNN has no engine for the shape. The first call for a
  // shape makes its plans, which takes the host a while and puts nothing on a stream.
  absl::StatusOr<int64_t> ForwardBytes(const AttentionShape& shape, DType dtype);
  absl::StatusOr<int64_t> BackwardBytes(const AttentionShape& shape, DType dtype);

  // Put the work on `stream` of the device; `workspace` has the bytes above, aligned to 256, and is used until the work
  // has run. Errors name the shape and have cuDNN's own message.
  absl::Status Forward(const CudnnAttentionForward& operands, const AttentionShape& shape, DType dtype,
                       std::byte* workspace, CUstream_st* stream);
  absl::Status Backward(const CudnnAttentionBackward& operands, const AttentionShape& shape, DType dtype,
                        std::byte* workspace, CUstream_st* stream);

 private:
  enum class Direction : uint8_t { kForward, kBackward };

  struct PlanKey {
    Direction direction;
    CudnnAttentionSizes sizes;

    auto operator<=>(const PlanKey&) const = default;
  };

  // Addresses and numbers by uid, for one execution.
  class Bindings;

  CudnnAttention(const CudnnLibrary& library, int64_t max_grad_scores_bytes, void* handle)
      : library_(library), max_grad_scores_bytes_(max_grad_scores_bytes), handle_(handle) {}

  // Requires mutex_. A plan, or the reason for its absence, is made once.
  absl::StatusOr<const CudnnPlan*> PlanFor(const PlanKey& key);
  absl::Status Execute(const CudnnPlan& plan, const Bindings& bindings, std::byte* workspace, CUstream_st* stream);

  const CudnnLibrary& library_;
  const int64_t max_grad_scores_bytes_;
  void* const handle_;  // used with mutex_ held
  std::mutex mutex_;
  std::map<PlanKey, absl::StatusOr<CudnnPlan>> plans_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_CUDNN_ATTENTION_H_
