// SPDX-License-Identifier: Apache-2.0
//
// One call of backward is a loop over pieces, each a range of samples and of key-value heads with the query heads that
// read them. Attention is independent over both, so pieces share nothing and their results are parts of grad_qkv; they
// follow each other on the stream and use the same workspace:
//
//   | row sums of grad_out * out, float32 | the engine's own |
#include "fsdp/nn/cudnn/cudnn_attention.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 256;
constexpr char kForwardName[] = "attention";
constexpr char kBackwardName[] = "attention backward";

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Samples and key-value heads [first, first + number).
struct Piece {
  int64_t sample = 0, batch = 0;
  int64_t kv_head = 0, kv_heads = 0;
};

// The size of the fewest parts of `total` that have at most `most` each; only the last part is smaller.
int64_t EvenPart(int64_t total, int64_t most) { return CeilDiv(total, CeilDiv(total, most)); }

std::string Describe(const char* call, const AttentionShape& shape, DType dtype) {
  return absl::StrCat(call, " of ", shape.batch, " x ", shape.seq_len, " tokens, ", shape.num_heads, " heads (",
                      shape.kv_heads(), " of keys) of ", shape.head_dim, ", ", std::string(DTypeName(dtype)));
}

// The pieces of backward. kUnimplemented if a single key-value head is too large.
absl::StatusOr<std::vector<Piece>> PiecesOf(const AttentionShape& shape, DType dtype, int64_t most_bytes) {
  if (shape.batch == 0) return std::vector<Piece>();
  const int64_t kv_heads = shape.kv_heads();
  // A head of keys brings all query heads of its group: grad_k and grad_v are sums over the group, which one engine
  // call must add.
  const int64_t head_bytes = shape.num_heads / kv_heads * shape.seq_len * shape.seq_len * SizeOf(dtype);
  const int64_t most_heads = most_bytes / head_bytes;
  if (most_heads == 0) {
    return absl::UnimplementedError(absl::StrCat(Describe(kBackwardName, shape, dtype), ": cuDNN would want ",
                                                 head_bytes, " bytes of workspace for a head of keys, more than ",
                                                 most_bytes));
  }
  const int64_t heads = EvenPart(kv_heads, most_heads);
  // Several samples only if a piece has all heads; otherwise one.
  const int64_t samples = EvenPart(shape.batch, std::max<int64_t>(most_heads / kv_heads, 1));
  std::vector<Piece> pieces;
  for (int64_t sample = 0; sample < shape.batch; sample += samples) {
    for (int64_t head = 0; head < kv_heads; head += heads) {
      pieces.push_back({sample, std::min(samples, shape.batch - sample), head, std::min(heads, kv_heads - head)});
    }
  }
  return pieces;
}

Piece Whole(const AttentionShape& shape) { return {0, shape.batch, 0, shape.kv_heads()}; }

CudnnAttentionSizes SizesOf(const AttentionShape& shape, const Piece& piece, DType dtype) {
  return {.batch = piece.batch,
          .num_heads = piece.kv_heads * (shape.num_heads / shape.kv_heads()),
          .num_kv_heads = piece.kv_heads,
          .seq_len = shape.seq_len,
          .head_dim = shape.head_dim,
          .qkv_width = shape.qkv_width(),
          .out_width = shape.q_width(),
          .all_heads = shape.num_heads,
          .dtype = dtype == DType::kBFloat16 ? cudnn::DataType::kBFloat16 : cudnn::DataType::kHalf};
}

// Row sums of grad_out * out, rounded up so that the engine's workspace behind them is aligned.
int64_t RowSumsBytes(const CudnnAttentionSizes& sizes) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * sizes.batch * sizes.num_heads * sizes.seq_len;
  return CeilDiv(bytes, kAlignment) * kAlignment;
}

// cuDNN's requirements for a shape, whatever the GPU. A head's columns are loaded 16 bytes at a time; NVIDIA's own
// frontend refuses a single token.
absl::Status CheckShape(const AttentionShape& shape, DType dtype) {
  const bool is_16_bits = dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  if (is_16_bits && shape.head_dim % 8 == 0 && shape.seq_len > 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      Describe(kForwardName, shape, dtype), ": cuDNN wants 16 bits, heads of a multiple of 8, and 2 tokens or more"));
}

// The first elements of a piece's parts of the tensors of `shape`.
struct Offsets {
  Offsets(const AttentionShape& shape, const Piece& piece) {
    const int64_t row = piece.sample * shape.seq_len;
    const int64_t head = piece.kv_head * (shape.num_heads / shape.kv_heads());
    q = row * shape.qkv_width() + head * shape.head_dim;
    k = row * shape.qkv_width() + shape.q_width() + piece.kv_head * shape.head_dim;
    v = k + shape.kv_width();
    out = row * shape.q_width() + head * shape.head_dim;
    statistics = row * shape.num_heads + head * shape.seq_len;
  }

  int64_t q, k, v, out, statistics;
};

}  // namespace

class CudnnAttention::Bindings {
 public:
  explicit Bindings(DType dtype) : element_(SizeOf(dtype)) {}

  // The tensor that begins `offset` elements after `tensor`.
  void Bind(int64_t uid, const void* tensor, int64_t offset) {
    BindBytes(uid, static_cast<const std::byte*>(tensor) + offset * element_);
  }
  void Bind(int64_t uid, const float* values) { BindBytes(uid, values); }

  const std::vector<int64_t>& uids() const { return uids_; }
  const std::vector<void*>& addresses() const { return addresses_; }

 private:
  // cuDNN takes results and operands alike.
  void BindBytes(int64_t uid, const void* address) {
    uids_.push_back(uid);
    addresses_.push_back(const_cast<void*>(address));
  }

  const int64_t element_;
  std::vector<int64_t> uids_;
  std::vector<void*> addresses_;
};

absl::StatusOr<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(const CudnnLibrary& library,
                                                                       int64_t max_grad_scores_bytes) {
  void* handle = nullptr;
  FSDP_RETURN_IF_ERROR(library.StatusOf(library.create(&handle), "cudnnCreate"));
  return std::unique_ptr<CudnnAttention>(new CudnnAttention(library, max_grad_scores_bytes, handle));
}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  library_.destroy(handle_);
}

absl::StatusOr<const CudnnPlan*> CudnnAttention::PlanFor(const PlanKey& key) {
  auto kept = plans_.find(key);
  // A failure is kept like a plan, so that cuDNN's heuristics run once per shape and not at every step.
  if (kept == plans_.end()) {
    CudnnGraph graph(library_);
    const bool is_forward = key.direction == Direction::kForward;
    is_forward ? WriteAttentionForward(key.sizes, graph) : WriteAttentionBackward(key.sizes, graph);
    kept = plans_.emplace(key, graph.Plan(handle_, is_forward ? kForwardName : kBackwardName)).first;
  }
  if (!kept->second.ok()) return kept->second.status();
  return &*kept->second;
}

absl::StatusOr<int64_t> CudnnAttention::ForwardBytes(const AttentionShape& shape, DType dtype) {
  FSDP_RETURN_IF_ERROR(CheckShape(shape, dtype));
  if (shape.batch == 0) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  FSDP_ASSIGN_OR_RETURN(const CudnnPlan* plan, PlanFor({Direction::kForward, SizesOf(shape, Whole(shape), dtype)}));
  return plan->workspace_bytes;
}

absl::StatusOr<int64_t> CudnnAttention::BackwardBytes(const AttentionShape& shape, DType dtype) {
  FSDP_RETURN_IF_ERROR(CheckShape(shape, dtype));
  FSDP_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOf(shape, dtype, max_grad_scores_bytes_));
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t most = 0;
  for (const Piece& piece : pieces) {
    const CudnnAttentionSizes sizes = SizesOf(shape, piece, dtype);
    FSDP_ASSIGN_OR_RETURN(const CudnnPlan* plan, PlanFor({Direction::kBackward, sizes}));
    most = std::max(most, RowSumsBytes(sizes) + plan->workspace_bytes);
  }
  return most;
}

absl::Status CudnnAttention::Forward(const CudnnAttentionForward& operands, const AttentionShape& shape, DType dtype,
                                     std::byte* workspace, CUstream_st* stream) {
  if (shape.batch == 0) return absl::OkStatus();
  // The handle's stream is shared state, so the lock covers the execution as well as the plans.
  const std::lock_guard<std::mutex> lock(mutex_);
  FSDP_ASSIGN_OR_RETURN(const CudnnPlan* plan, PlanFor({Direction::kForward, SizesOf(shape, Whole(shape), dtype)}));
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const Offsets at(shape, Whole(shape));
  Bindings bindings(dtype);
  bindings.Bind(kUidQ, operands.qkv, at.q);
  bindings.Bind(kUidK, operands.qkv, at.k);
  bindings.Bind(kUidV, operands.qkv, at.v);
  bindings.Bind(kUidOut, operands.out, at.out);
  bindings.Bind(kUidStatistics, operands.statistics + at.statistics);
  bindings.Bind(kUidScale, &shape.scale);
  bindings.Bind(kUidMasked, &minus_infinity);
  return Annotate(Execute(*plan, bindings, workspace, stream), Describe(kForwardName, shape, dtype));
}

absl::Status CudnnAttention::Backward(const CudnnAttentionBackward& operands, const AttentionShape& shape, DType dtype,
                                      std::byte* workspace, CUstream_st* stream) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOf(shape, dtype, max_grad_scores_bytes_));
  const std::lock_guard<std::mutex> lock(mutex_);
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const float one = 1;
  // Pieces run one after another on the stream, so that all of them can use one workspace, sized for the largest.
  for (const Piece& piece : pieces) {
    const CudnnAttentionSizes sizes = SizesOf(shape, piece, dtype);
    FSDP_ASSIGN_OR_RETURN(const CudnnPlan* plan, PlanFor({Direction::kBackward, sizes}));
    const Offsets at(shape, piece);
    Bindings bindings(dtype);
    bindings.Bind(kUidQ, operands.qkv, at.q);
    bindings.Bind(kUidK, operands.qkv, at.k);
    bindings.Bind(kUidV, operands.qkv, at.v);
    bindings.Bind(kUidOut, operands.out, at.out);
    bindings.Bind(kUidGradOut, operands.grad_out, at.out);
    bindings.Bind(kUidGradQ, operands.grad_qkv, at.q);
    bindings.Bind(kUidGradK, operands.grad_qkv, at.k);
    bindings.Bind(kUidGradV, operands.grad_qkv, at.v);
    bindings.Bind(kUidStatistics, operands.statistics + at.statistics);
    bindings.Bind(kUidRowSums, reinterpret_cast<const float*>(workspace));
    bindings.Bind(kUidScale, &shape.scale);
    bindings.Bind(kUidMasked, &minus_infinity);
    bindings.Bind(kUidOne, &one);
    FSDP_RETURN_IF_ERROR(Annotate(Execute(*plan, bindings, workspace + RowSumsBytes(sizes), stream),
                                  Describe(kBackwardName, shape, dtype)));
  }
  return absl::OkStatus();
}

absl::Status CudnnAttention::Execute(const CudnnPlan& plan, const Bindings& bindings, std::byte* workspace,
                                     CUstream_st* stream) {
  FSDP_RETURN_IF_ERROR(library_.StatusOf(library_.set_stream(handle_, stream), "cudnnSetStream"));
  FSDP_ASSIGN_OR_RETURN(const CudnnDescriptor pack,
                        CudnnDescriptorBuilder(library_, cudnn::DescriptorType::kVariantPack)
                            .Set(cudnn::Attribute::kVariantPackUniqueIds, bindings.uids())
                            .SetPointers(cudnn::Attribute::kVariantPackDataPointers, bindings.addresses())
                            .SetPointers(cudnn::Attribute::kVariantPackWorkspace, {workspace})
                            .Finalize("the addresses"));
  return library_.StatusOf(library_.execute(handle_, plan.plan.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace fsdp
