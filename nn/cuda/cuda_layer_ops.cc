// SPDX-License-Identifier: Apache-2.0
//
// LayerOps on a CUDA device, for a program that links this library. Each function puts its kernels on the stream
// immediately (cuda_issue.h), holding the buffers of its operands until they have run. Memory between kernels of one
// call is the stream's workspace, which all calls on a stream share, since they follow each other; the scratch of the
// stream is for smaller values. Work that the stream defers until host work has run keeps everything it needs by value.
//
// Values that are out of range (tokens, targets) are found by the kernels and reported through the stream's
// KernelFailure, which fails the stream at its next wait for the GPU.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/cuda/kernel_failure.h"
#include "fsdp/nn/cuda/cuda_attention.h"
#include "fsdp/nn/cuda/cuda_column_sums.h"
#include "fsdp/nn/cuda/cuda_cross_attention.h"
#include "fsdp/nn/cuda/cuda_cross_entropy.h"
#include "fsdp/nn/cuda/cuda_dropout.h"
#include "fsdp/nn/cuda/cuda_elementwise.h"
#include "fsdp/nn/cuda/cuda_embedding.h"
#include "fsdp/nn/cuda/cuda_fold.h"
#include "fsdp/nn/cuda/cuda_fused_attention.h"
#include "fsdp/nn/cuda/cuda_issue.h"
#include "fsdp/nn/cuda/cuda_matmul.h"
#include "fsdp/nn/cuda/cuda_norm.h"
#include "fsdp/nn/cuda/cuda_online_attention.h"
#include "fsdp/nn/cuda/cuda_rotation.h"
#include "fsdp/nn/cuda/cuda_rows.h"
#include "fsdp/nn/ops/device_scaled_loss.h"
#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {
namespace {

float* AsFloats(std::byte* memory) { return reinterpret_cast<float*>(memory); }
double* AsDoubles(std::byte* memory) { return reinterpret_cast<double*>(memory); }

void IssueNormBackward(const char* kernel, const CudaNormBackwardOperands& o, const NormGrads& grads, Stream& stream) {
  IssueWithWorkspace(kernel, NormBackwardBytes(o.x.shape().dim(0), o.x.shape().dim(1)),
                     {&o.grad_out, &o.x, &o.weight, &o.mean, &o.rstd, &o.grad_residual, &grads.x, &grads.weight.grad,
                      &grads.bias.grad},
                     stream,
                     [=](std::byte* memory, CUstream_st* s) { CudaNormBackward(o, grads, AsFloats(memory), s); });
}

// Puts `launch(operands, stream)` on the stream, with memory for the losses of the rows and a place to report a target
// that is not a class. `scale` is an operand too, if defined.
template <typename F>
void IssueCrossEntropy(const char* kernel, CrossEntropyOperands operands, Stream& stream, F launch,
                       const Tensor& scale = Tensor()) {
  absl::StatusOr<std::shared_ptr<KernelFailure>> failure = CudaStream::Of(stream).kernel_failure();
  if (!failure.ok()) return FailStream(stream, failure.status());
  // The stream checks this record when it next waits for the GPU.
  operands.refusal = (*failure)->refusal();
  IssueWithWorkspace(kernel, operands.targets.numel() * static_cast<int64_t>(sizeof(double)),
                     {&operands.logits, &operands.targets, &operands.loss, &operands.statistics, &scale}, stream,
                     [operands, failure = *failure, launch](std::byte* memory, CUstream_st* s) {
                       CrossEntropyOperands with_memory = operands;
                       with_memory.row_losses = AsDoubles(memory);
                       launch(with_memory, s);
                     });
}

// True if the kernels of cuda_online_attention.h serve the call.
bool IsOnline(const AttentionShape& shape, DType dtype) {
  return shape.rounding == AttentionRounding::kOnline && dtype != DType::kFloat32;
}

// False, and the stream fails, for a shape without kernels.
bool HasKernels(const AttentionShape& shape, Stream& stream) {
  if (shape.head_dim <= kMaxCudaHeadDim) return true;
  FailStream(stream, absl::UnimplementedError(absl::StrCat("attention: head_dim ", shape.head_dim,
                                                           ": a CUDA device has kernels up to ", kMaxCudaHeadDim)));
  return false;
}

bool HasKernels(const CrossAttentionShape& shape, Stream& stream) {
  if (std::max(shape.q_len, shape.kv_len) <= kMaxCrossAttentionLength && shape.head_dim <= kMaxCudaHeadDim) return true;
  FailStream(stream, absl::UnimplementedError(
                         absl::StrCat("cross attention of ", shape.q_len, " queries and ", shape.kv_len,
                                      " keys, head_dim ", shape.head_dim, ": a CUDA device has kernels for up to ",
                                      kMaxCrossAttentionLength, " of either and head_dim ", kMaxCudaHeadDim)));
  return false;
}

// Attention has kernels up to kMaxCudaHeadDim, and fails the stream with kUnimplemented beyond. A stream of another
// device is a bug and aborts. If the device has no room for the stream's workspace, the stream fails with
// kResourceExhausted.
class CudaLayerOps final : public LayerOps, public DeviceScaledLoss {
 public:
  // On the GPU of number `ordinal`. Cheap: cuBLASLt is opened by the first product, and cuDNN by the first attention
  // that may use it.
  explicit CudaLayerOps(int ordinal)
      : ordinal_(ordinal),
        matmul_(std::make_shared<CudaMatmul>()),
        fused_attention_(std::make_unique<CudaFusedAttention>()) {}

  // 16-bit rows whose length is not a multiple of 16 bytes get padding (cuda_rows.h).
  int64_t RowStride(DType dtype, int64_t columns) const override { return AlignedRowStride(dtype, columns); }

  std::string AttentionKernels(const AttentionShape& shape, DType dtype) const override {
    return fused_attention_->Describe(shape, dtype, ordinal_);
  }

  void CrossEntropyWithScaledGradient(const Tensor& logits, const Tensor& targets, const DeviceScale& scale,
                                      const Tensor& loss, const Tensor& statistics, Stream& stream) const override {
    IssueCrossEntropy(
        "cross entropy with gradient", {logits, targets, loss, statistics}, stream,
        [scale](const CrossEntropyOperands& operands, CUstream_st* s) {
          CudaCrossEntropyWithGradient(operands, scale, s);
        },
        scale.scale);
  }

 private:
  // Kernels that read values of tokens or targets report the first one out of range through the stream's KernelFailure.
  void DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const override {
    absl::StatusOr<std::shared_ptr<KernelFailure>> failure = CudaStream::Of(stream).kernel_failure();
    if (!failure.ok()) return FailStream(stream, failure.status());
    Issue("embedding", {&tokens, &table, &out}, stream,
          [=, failure = *failure](CUstream_st* s) { CudaEmbedding(tokens, table, out, failure->refusal(), s); });
  }

  void DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, Stream& stream) const override {
    IssueWithWorkspace("embedding backward",
                       EmbeddingBackwardBytes(tokens.numel(), grad_table.shape().dim(1), grad_table.dtype()),
                       {&tokens, &grad_out, &grad_table}, stream, [=](std::byte* memory, CUstream_st* s) {
                         CudaEmbeddingBackward(tokens, grad_out, padding_idx, grad_table, memory, s);
                       });
  }

  void DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const override {
    const CudaRowCopy copy = {.from = x.data(),
                              .from_stride = x.row_stride(),
                              .to = out.data(),
                              .to_stride = out.row_stride(),
                              .rows = x.shape().dim(0),
                              .columns = x.shape().dim(1),
                              .dtype = x.dtype()};
    Issue("copy of rows", {&x, &out}, stream, [copy](CUstream_st* s) { CudaCopyRows(copy, s); });
  }

  // By cuBLASLt; the bias and the accumulation are part of the product.
  void DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
                Stream& stream) const override {
    // Strides come from the tensors, whose rows may be padded.
    const Gemm gemm = {.m = c.shape().dim(0),
                       .n = c.shape().dim(1),
                       .k = a.shape().dim(options.transpose_a ? 0 : 1),
                       .a = a.data(),
                       .b = b.data(),
                       .bias = bias.defined() ? bias.data() : nullptr,
                       .c = c.data(),
                       .lda = a.row_stride(),
                       .ldb = b.row_stride(),
                       .ldc = c.row_stride(),
                       .dtype = a.dtype(),
                       .c_dtype = c.dtype(),
                       .transpose_a = options.transpose_a,
                       .transpose_b = options.transpose_b,
                       .accumulate = options.accumulate};
    CudaStream& on = CudaStream::Of(stream);
    absl::StatusOr<Buffer> workspace = on.Workspace(CudaMatmul::WorkspaceBytes(gemm));
    if (!workspace.ok()) return FailStream(stream, workspace.status());
    on.Issue({a.buffer(), b.buffer(), bias.buffer(), c.buffer(), *workspace},
             // `matmul_` is shared with the closure, because CudaLayerOps may be destroyed before the stream runs it.
             [gemm, matmul = matmul_, workspace = *workspace, device = on.ordinal()](CUstream_st* s) {
               const absl::Status status = matmul->Run(gemm, workspace, s);
               return status.ok() ? CudaLaunchStatus("matmul", device) : status;
             });
  }

  // Sums over rows in two kernels; see cuda_column_sums.h.
  void DoBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, Stream& stream) const override {
    IssueWithWorkspace(
        "bias backward", ColumnSumsBytes(grad_out.shape().dim(0), grad_bias.grad.numel()), {&grad_out, &grad_bias.grad},
        stream, [=](std::byte* memory, CUstream_st* s) { CudaBiasBackward(grad_out, grad_bias, AsFloats(memory), s); });
  }

  // Elementwise kernels load several packs of 16 bytes at a time if all operands have the same alignment (cuda/pack.h).
  void DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const override {
    Issue("add", {&a, &b, &out}, stream, [=](CUstream_st* s) { CudaAdd(a, b, out, s); });
  }

  // A team of warps for each row, which is read once. Backward computes the gradients of parameters, unless undefined,
  // in the same pass, and a second, small kernel adds the blocks' sums.
  void DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, Stream& stream) const override {
    // Without a residual the kernel reads x as it is, and writes no sum.
    DoAddLayerNorm({x, Tensor(), Tensor()}, weight, bias, eps, out, mean, rstd, stream);
  }

  // The same kernels: the addition costs a pass of the residual and one of the sum.
  void DoAddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                      const Tensor& mean, const Tensor& rstd, Stream& stream) const override {
    Issue("layer norm", {&input.x, &input.residual, &input.sum, &weight, &bias, &out, &mean, &rstd}, stream,
          [=](CUstream_st* s) { CudaLayerNorm(input, weight, bias, eps, out, mean, rstd, s); });
  }

  void DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 Stream& stream) const override {
    DoAddRmsNorm({x, Tensor(), Tensor()}, weight, eps, out, rstd, stream);
  }

  void DoAddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                    Stream& stream) const override {
    Issue("rms norm", {&input.x, &input.residual, &input.sum, &weight, &out, &rstd}, stream,
          [=](CUstream_st* s) { CudaRmsNorm(input, weight, eps, out, rstd, s); });
  }

  void DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                           const ParameterGrad& grad_bias, Stream& stream) const override {
    IssueNormBackward("layer norm backward", {grad_out, x, weight, mean, rstd, Tensor()},
                      {grad_x, grad_weight, grad_bias}, stream);
  }

  void DoAddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                              const Tensor& mean, const Tensor& rstd, const NormGrads& grads,
                              Stream& stream) const override {
    IssueNormBackward("layer norm backward", {grad_out, sum, weight, mean, rstd, grad_sum}, grads, stream);
  }

  void DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const ParameterGrad& grad_weight, Stream& stream) const override {
    IssueNormBackward("rms norm backward", {grad_out, x, weight, Tensor(), rstd, Tensor()},
                      {grad_x, grad_weight, Tensor()}, stream);
  }

  void DoAddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                            const Tensor& rstd, const NormGrads& grads, Stream& stream) const override {
    IssueNormBackward("rms norm backward", {grad_out, sum, weight, Tensor(), rstd, grad_sum}, grads, stream);
  }

  void DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const override {
    Issue("activation", {&x, &out}, stream, [=](CUstream_st* s) { CudaActivate(kind, x, out, s); });
  }

  void DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          Stream& stream) const override {
    Issue("activation backward", {&grad_out, &x, &grad_x}, stream,
          [=](CUstream_st* s) { CudaActivateBackward(kind, grad_out, x, grad_x, s); });
  }

  void DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       Stream& stream) const override {
    Issue("gated activation", {&gate, &up, &out}, stream,
          [=](CUstream_st* s) { CudaActivateGated(kind, gate, up, out, s); });
  }

  void DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const override {
    Issue("gated activation backward", {&grad_out, &gate, &up, &grad_gate, &grad_up}, stream,
          [=](CUstream_st* s) { CudaActivateGatedBackward(kind, grad_out, gate, up, grad_gate, grad_up, s); });
  }

  // A thread computes a block of four random numbers. The mask is the host's choice, which a graph would repeat.
  void DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const override {
    if (CudaRecording* const recording = CudaStream::Of(stream).recording().get(); recording != nullptr) {
      return recording->Note(OnStream(
          absl::FailedPreconditionError("dropout cannot be captured, since each replay would drop the same elements"),
          std::string(stream.name())));
    }
    Issue("dropout", {&x, &out}, stream, [=](CUstream_st* s) { CudaDropout(x, mask, out, s); });
  }

  // A thread for each element that is written.
  void DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                Stream& stream) const override {
    Issue("unfold", {&image, &columns}, stream, [=](CUstream_st* s) { CudaUnfold(image, shape, columns, s); });
  }

  void DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image,
              Stream& stream) const override {
    Issue("fold", {&columns, &image}, stream, [=](CUstream_st* s) { CudaFold(columns, shape, image, s); });
  }

  // A kernel for each direction; every element is read once and written once.
  void DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, Stream& stream) const override {
    Issue("rotation", {&q, &k, &v, &rotation, &qkv}, stream,
          [=](CUstream_st* s) { CudaRotateQkv(q, k, v, rotation, shape, qkv, s); });
  }

  void DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                           Stream& stream) const override {
    Issue("rotation backward", {&grad_qkv, &rotation, &grad_q, &grad_k, &grad_v}, stream,
          [=](CUstream_st* s) { CudaRotateQkvBackward(grad_qkv, rotation, shape, grad_q, grad_k, grad_v, s); });
  }

  // By cuDNN if CudaFusedAttention serves the call. Else in tiles that never leave a block: O(T) memory per head, and
  // no T x T tensor.
  void DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         Stream& stream) const override {
    // cuDNN first: it returns false without putting work on the stream for calls that it does not serve.
    if (fused_attention_->Forward(qkv, shape, out, statistics, CudaStream::Of(stream))) return;
    if (!HasKernels(shape, stream)) return;
    Issue("attention", {&qkv, &out, &statistics}, stream, [=](CUstream_st* s) {
      // CudaOnlineAttention keeps the same statistics as cuDNN, so forward and backward may be served by different
      // ones.
      if (IsOnline(shape, qkv.dtype())) return CudaOnlineAttention(qkv, shape, out, statistics, s);
      CudaCausalAttention(qkv, shape, out, statistics, s);
    });
  }

  void DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const override {
    if (fused_attention_->Backward({grad_out, qkv, out, statistics, grad_qkv}, shape, CudaStream::Of(stream))) return;
    if (!HasKernels(shape, stream)) return;
    if (IsOnline(shape, qkv.dtype())) {
      return IssueWithWorkspace(
          "attention backward", CudaOnlineAttentionBackwardBytes(shape),
          {&grad_out, &qkv, &out, &statistics, &grad_qkv}, stream, [=](std::byte* memory, CUstream_st* s) {
            CudaOnlineAttentionBackward({grad_out, qkv, out, statistics}, shape, grad_qkv, memory, s);
          });
    }
    IssueWithWorkspace("attention backward", CudaAttentionBackwardBytes(shape),
                       {&grad_out, &qkv, &statistics, &grad_qkv}, stream, [=](std::byte* memory, CUstream_st* s) {
                         CudaCausalAttentionBackward(grad_out, qkv, statistics, shape, grad_qkv, memory, s);
                       });
  }

  // A block for each query forward, and for each query and each key backward; up to kMaxCrossAttentionLength of either.
  void DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, Stream& stream) const override {
    if (!HasKernels(shape, stream)) return;
    Issue("cross attention", {&operands.q, &operands.k, &operands.v, &operands.key_mask, &out, &statistics}, stream,
          [=](CUstream_st* s) { CudaCrossAttention(operands, shape, out, statistics, s); });
  }

  void DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, Stream& stream) const override {
    if (!HasKernels(shape, stream)) return;
    IssueWithWorkspace("cross attention backward", CrossAttentionBackwardBytes(shape),
                       {&grad_out, &operands.q, &operands.k, &operands.v, &operands.key_mask, &statistics, &grads.q,
                        &grads.k, &grads.v},
                       stream, [=](std::byte* memory, CUstream_st* s) {
                         CudaCrossAttentionBackward(grad_out, operands, statistics, shape, grads, AsFloats(memory), s);
                       });
  }

  // A block for each row; a second kernel adds the row losses in a fixed order.
  void DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      Stream& stream) const override {
    IssueCrossEntropy("cross entropy", {logits, targets, loss, statistics}, stream,
                      [](const CrossEntropyOperands& operands, CUstream_st* s) { CudaCrossEntropy(operands, s); });
  }

  void DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, Stream& stream) const override {
    Issue("cross entropy backward", {&logits, &targets, &statistics, &grad_logits}, stream,
          [=](CUstream_st* s) { CudaCrossEntropyBackward(logits, targets, statistics, scale, grad_logits, s); });
  }

  // The row stays in shared memory between the two passes if it fits.
  void DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                  const Tensor& statistics, Stream& stream) const override {
    IssueCrossEntropy("cross entropy with gradient", {logits, targets, loss, statistics}, stream,
                      [scale](const CrossEntropyOperands& operands, CUstream_st* s) {
                        CudaCrossEntropyWithGradient(operands, scale, s);
                      });
  }

  const int ordinal_;
  const std::shared_ptr<CudaMatmul> matmul_;  // shared with work that streams put off
  const std::unique_ptr<CudaFusedAttention> fused_attention_;
};

// Runs before main; the library is linked with alwayslink, so that nothing needs to name it.
[[maybe_unused]] const bool registered =
    RegisterLayerOps(DeviceType::kCuda, [](const Device& device) -> std::unique_ptr<const LayerOps> {
      return std::make_unique<CudaLayerOps>(device.id().index);
    });

}  // namespace

}  // namespace fsdp
