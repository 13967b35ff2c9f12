// SPDX-License-Identifier: Apache-2.0
//
// The functions of LayerOps except the norms (norm_ops.cc), and the registry.
//
// Each function has one form: an OperandCheck keeps the first problem, and then either the stream gets that error in
// place of the kernel (FailsOn), or the device's kernel is called. Nothing here reads an element: the kernels, which
// see the values, check that tokens and targets are in range.
//
// The checks run on the calling thread, when the kernel is put on the stream, because shapes and dtypes are known then.
// The error still goes to the stream and is not returned: it must come after the errors of earlier work, and callers
// look for errors of kernels in one place, Stream::Synchronize. A stream that failed skips everything that follows, so
// no kernel ever reads an output that was not written.
//
// Shapes are compared with one operand, as a rule the one whose shape determines the others: c for products, `shape`
// for attention. Activations may have any shape of the right number of elements, since layers pass views.
//
// The registry needs no lock. A library of kernels is linked with alwayslink, so its static initialisers run before
// main and register it; nothing in the program names it. Writes thus happen on one thread before main, and reads after.
#include "fsdp/nn/ops/layer_ops.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "fsdp/nn/ops/operand_check.h"

namespace fsdp {
namespace {

// 0 unless `t` is a matrix: the checks continue to compare other operands with it, after Matrix has noted the failure.
int64_t Rows(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(0) : 0; }
int64_t Cols(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(1) : 0; }

// With grouped queries, heads i * group to (i + 1) * group - 1 of q read head i of k and v, so the division must be
// exact. `Shape` is the shape of either attention.
template <typename Shape>
void CheckGroups(const Shape& shape, OperandCheck& check) {
  // Without heads kv_heads() is 0, which nothing is divided by.
  if (shape.num_heads > 0 && shape.num_heads % shape.kv_heads() == 0) return;
  check.Fail(absl::StrCat("num_heads ", shape.num_heads, " is not a multiple of num_kv_heads ", shape.kv_heads()));
}

// `heads` is the output, or backward the output's gradient.
void CheckAttention(const AttentionShape& shape, const Tensor& qkv, const Tensor& heads, const Tensor& statistics,
                    OperandCheck& check) {
  const int64_t tokens = shape.batch * shape.seq_len;
  check.FloatDType({&qkv, &heads});
  CheckGroups(shape, check);
  check.Numel("qkv", qkv, tokens * shape.qkv_width());
  check.Numel("heads", heads, tokens * shape.q_width());
  check.Numel("statistics", statistics, DType::kFloat32, shape.statistics_numel());
}

// `heads` is the output, or backward the output's gradient.
void CheckCrossAttention(const CrossAttentionShape& shape, const CrossAttentionOperands& operands, const Tensor& heads,
                         const Tensor& statistics, OperandCheck& check) {
  check.FloatDType({&operands.q, &operands.k, &operands.v, &heads});
  CheckGroups(shape, check);
  check.Numel("q", operands.q, shape.batch * shape.q_len * shape.q_width());
  check.Numel("k", operands.k, shape.batch * shape.kv_len * shape.kv_width());
  check.Numel("v", operands.v, shape.batch * shape.kv_len * shape.kv_width());
  if (operands.key_mask.defined()) {
    check.Numel("key_mask", operands.key_mask, DType::kInt32, shape.batch * shape.kv_len);
  }
  check.Numel("heads", heads, shape.batch * shape.q_len * shape.q_width());
  check.Numel("statistics", statistics, DType::kFloat32, shape.batch * shape.num_heads * shape.q_len * 2);
}

void CheckConvolution(const ConvolutionShape& shape, int64_t rows, const Tensor& image, const Tensor& columns,
                      OperandCheck& check) {
  check.FloatDType({&image, &columns});
  if (shape.stride_h < 1 || shape.stride_w < 1 || shape.dilation_h < 1 || shape.dilation_w < 1 || shape.kernel_h < 1 ||
      shape.kernel_w < 1 || shape.padding_h < 0 || shape.padding_w < 0) {
    check.Fail("a kernel, stride or dilation below 1, or a padding below 0");
    return;
  }
  check.Numel("image", image, shape.image_numel());
  check.Numel("columns", columns, rows * shape.columns());
  // After the sizes, because the result is 0 for a kernel that does not fit, and then no columns are wanted.
  if (shape.columns() == 0) {
    check.Fail(absl::StrCat("a kernel of ", shape.kernel_h, " x ", shape.kernel_w, " does not fit into an image of ",
                            shape.height, " x ", shape.width, " with its padding"));
  }
}

// Targets are one int32 for each row, in any shape. The kernel checks their values.
void CheckCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& statistics, OperandCheck& check) {
  check.AllowPaddedRows();
  check.Matrix("logits", logits);
  check.FloatDType({&logits});
  check.Numel("targets", targets, DType::kInt32, Rows(logits));
  check.Numel("statistics", statistics, DType::kFloat32, 2 * Rows(logits));
}

// Shared by both directions: backward's gradients have the shapes of forward's operands. A head must have halves, and
// the table must reach the last position.
void CheckRotation(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& rotation, const Tensor& qkv, OperandCheck& check) {
  const int64_t tokens = shape.batch * shape.seq_len;
  check.FloatDType({&q, &k, &v, &rotation, &qkv});
  if (shape.head_dim % 2 != 0) check.Fail(absl::StrCat("head_dim ", shape.head_dim, " is odd"));
  check.Numel("q", q, tokens * shape.q_width());
  check.Numel("k", k, tokens * shape.kv_width());
  check.Numel("v", v, tokens * shape.kv_width());
  check.Numel("qkv", qkv, tokens * shape.qkv_width());
  check.Matrix("rotation", rotation, shape.head_dim);
  if (Rows(rotation) < shape.seq_len) {
    check.Fail(absl::StrCat("rotation ", rotation.shape().ToString(), ", wanted at least ", shape.seq_len, " rows"));
  }
}

// A function-local static, because other static initialisers fill it before this file's own would run.
std::map<DeviceType, LayerOpsFactory>& Registry() {
  static auto* const registry = new std::map<DeviceType, LayerOpsFactory>;
  return *registry;
}

}  // namespace

void LayerOps::Embedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const {
  OperandCheck check("embedding");
  check.Matrix("table", table);
  check.FloatDType({&table, &out});
  // Any number of tokens: this checks only that they are defined, int32 and contiguous.
  check.Numel("tokens", tokens, DType::kInt32, tokens.numel());
  check.Numel("out", out, tokens.numel() * Cols(table));
  if (check.FailsOn(stream)) return;
  DoEmbedding(tokens, table, out, stream);
}

// Tokens may have any shape; its numel is the number of rows of grad_out.
void LayerOps::EmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                                 const Tensor& grad_table, Stream& stream) const {
  OperandCheck check("embedding backward");
  check.Matrix("grad_table", grad_table);
  check.FloatDType({&grad_out, &grad_table});
  check.Numel("tokens", tokens, DType::kInt32, tokens.numel());
  check.Numel("grad_out", grad_out, tokens.numel() * Cols(grad_table));
  if (check.FailsOn(stream)) return;
  DoEmbeddingBackward(tokens, grad_out, padding_idx, grad_table, stream);
}

void LayerOps::CopyRows(const Tensor& x, const Tensor& out, Stream& stream) const {
  OperandCheck check("copy of rows");
  check.AllowPaddedRows();
  check.Matrix("x", x);
  check.Matrix("out", out, Cols(x));
  check.FloatDType({&x, &out});
  // As many elements in the same rows; only the distances between rows may differ.
  check.Numel("out", out, x.numel());
  if (check.FailsOn(stream)) return;
  DoCopyRows(x, out, stream);
}

void LayerOps::Matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                      const MatmulOptions& options, Stream& stream) const {
  OperandCheck check("matmul");
  check.AllowPaddedRows();
  // c is [M, N]. The inner dimension k is the other dimension of a; b must have it as well, whichever way b is stored.
  const int64_t k = options.transpose_a ? Rows(a) : Cols(a);
  check.Matrix("c", c);
  check.Matrix("a", a, options.transpose_a ? Rows(c) : k);
  check.Matrix("b", b, options.transpose_b ? k : Cols(c));
  // A bias is added in the dtype of c by the products of GPUs, so c is of another dtype only without one.
  const bool is_wide = c.dtype() == DType::kFloat32 && !bias.defined();
  check.FloatDType({&a, &b, is_wide ? &a : &c, bias.defined() ? &bias : &a});
  // Matrix has compared one dimension of each; the numel then fixes the other.
  check.Numel("a", a, Rows(c) * k);
  check.Numel("b", b, k * Cols(c));
  if (bias.defined()) check.Numel("bias", bias, Cols(c));
  if (check.FailsOn(stream)) return;
  DoMatmul(a, b, bias, c, options, stream);
}

void LayerOps::BiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, Stream& stream) const {
  OperandCheck check("bias backward");
  check.AllowPaddedRows();
  check.Matrix("grad_out", grad_out);
  check.FloatDType({&grad_out, grad_bias.grad.dtype() == DType::kFloat32 ? &grad_out : &grad_bias.grad});
  check.Numel("grad_bias", grad_bias.grad, Cols(grad_out));
  if (check.FailsOn(stream)) return;
  DoBiasBackward(grad_out, grad_bias, stream);
}

void LayerOps::Add(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const {
  OperandCheck check("add");
  check.FloatDType({&a, &b, &out});
  check.Numel("a", a, out.numel());
  check.Numel("b", b, out.numel());
  check.Numel("out", out, out.numel());
  if (check.FailsOn(stream)) return;
  DoAdd(a, b, out, stream);
}

void LayerOps::Activate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const {
  OperandCheck check("activation");
  check.FloatDType({&x, &out});
  // x against itself: it sets the size that the others must have, and only needs to be defined.
  check.Numel("x", x, x.numel());
  check.Numel("out", out, x.numel());
  if (check.FailsOn(stream)) return;
  DoActivate(kind, x, out, stream);
}

void LayerOps::ActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                                Stream& stream) const {
  OperandCheck check("activation backward");
  check.FloatDType({&grad_out, &x, &grad_x});
  check.Numel("x", x, x.numel());
  check.Numel("grad_out", grad_out, x.numel());
  check.Numel("grad_x", grad_x, x.numel());
  if (check.FailsOn(stream)) return;
  DoActivateBackward(kind, grad_out, x, grad_x, stream);
}

void LayerOps::ActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                             Stream& stream) const {
  OperandCheck check("gated activation");
  check.FloatDType({&gate, &up, &out});
  check.Numel("gate", gate, gate.numel());
  check.Numel("up", up, gate.numel());
  check.Numel("out", out, gate.numel());
  if (check.FailsOn(stream)) return;
  DoActivateGated(kind, gate, up, out, stream);
}

void LayerOps::ActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                                     const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const {
  OperandCheck check("gated activation backward");
  check.FloatDType({&grad_out, &gate, &up, &grad_gate, &grad_up});
  check.Numel("gate", gate, gate.numel());
  check.Numel("grad_out", grad_out, gate.numel());
  check.Numel("up", up, gate.numel());
  check.Numel("grad_gate", grad_gate, gate.numel());
  check.Numel("grad_up", grad_up, gate.numel());
  if (check.FailsOn(stream)) return;
  DoActivateGatedBackward(kind, grad_out, gate, up, grad_gate, grad_up, stream);
}

void LayerOps::Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const {
  OperandCheck check("dropout");
  check.FloatDType({&x, &out});
  check.Numel("x", x, x.numel());
  check.Numel("out", out, x.numel());
  if (!(mask.p >= 0 && mask.p <= 1)) check.Fail(absl::StrCat("p is ", mask.p, ", wanted 0 to 1"));
  if (check.FailsOn(stream)) return;
  DoDropout(x, mask, out, stream);
}

void LayerOps::Unfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns, Stream& stream) const {
  OperandCheck check("unfold");
  // Fold reads no row of ones: it only adds the bias in the product, and has no place in the image.
  CheckConvolution(shape, shape.rows() + (shape.ones ? 1 : 0), image, columns, check);
  if (check.FailsOn(stream)) return;
  DoUnfold(image, shape, columns, stream);
}

void LayerOps::Fold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, Stream& stream) const {
  OperandCheck check("fold");
  CheckConvolution(shape, shape.rows(), image, columns, check);
  if (check.FailsOn(stream)) return;
  DoFold(columns, shape, image, stream);
}

void LayerOps::RotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                         const AttentionShape& shape, const Tensor& qkv, Stream& stream) const {
  OperandCheck check("rotation");
  CheckRotation(shape, q, k, v, rotation, qkv, check);
  if (check.FailsOn(stream)) return;
  DoRotateQkv(q, k, v, rotation, shape, qkv, stream);
}

void LayerOps::RotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                                 const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                 Stream& stream) const {
  OperandCheck check("rotation backward");
  CheckRotation(shape, grad_q, grad_k, grad_v, rotation, grad_qkv, check);
  if (check.FailsOn(stream)) return;
  DoRotateQkvBackward(grad_qkv, rotation, shape, grad_q, grad_k, grad_v, stream);
}

void LayerOps::CausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                               const Tensor& statistics, Stream& stream) const {
  OperandCheck check("attention");
  CheckAttention(shape, qkv, out, statistics, check);
  if (check.FailsOn(stream)) return;
  DoCausalAttention(qkv, shape, out, statistics, stream);
}

void LayerOps::CausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out,
                                       const Tensor& statistics, const AttentionShape& shape, const Tensor& grad_qkv,
                                       Stream& stream) const {
  OperandCheck check("attention backward");
  CheckAttention(shape, qkv, grad_out, statistics, check);
  // CheckAttention has compared qkv with grad_out, which has the shape of out.
  check.FloatDType({&qkv, &out, &grad_qkv});
  check.Numel("out", out, grad_out.numel());
  check.Numel("grad_qkv", grad_qkv, qkv.numel());
  if (check.FailsOn(stream)) return;
  DoCausalAttentionBackward(grad_out, qkv, out, statistics, shape, grad_qkv, stream);
}

void LayerOps::CrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape,
                              const Tensor& out, const Tensor& statistics, Stream& stream) const {
  OperandCheck check("cross attention");
  CheckCrossAttention(shape, operands, out, statistics, check);
  if (check.FailsOn(stream)) return;
  DoCrossAttention(operands, shape, out, statistics, stream);
}

void LayerOps::CrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                      const Tensor& statistics, const CrossAttentionShape& shape,
                                      const CrossAttentionGrads& grads, Stream& stream) const {
  OperandCheck check("cross attention backward");
  CheckCrossAttention(shape, operands, grad_out, statistics, check);
  check.FloatDType({&operands.q, &grads.q, &grads.k, &grads.v});
  check.Numel("grad_q", grads.q, operands.q.numel());
  check.Numel("grad_k", grads.k, operands.k.numel());
  check.Numel("grad_v", grads.v, operands.v.numel());
  if (check.FailsOn(stream)) return;
  DoCrossAttentionBackward(grad_out, operands, statistics, shape, grads, stream);
}

void LayerOps::CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                            Stream& stream) const {
  OperandCheck check("cross entropy");
  CheckCrossEntropy(logits, targets, statistics, check);
  check.Numel("loss", loss, DType::kFloat32, 1);
  if (check.FailsOn(stream)) return;
  DoCrossEntropy(logits, targets, loss, statistics, stream);
}

void LayerOps::CrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                                    const Tensor& grad_logits, Stream& stream) const {
  OperandCheck check("cross entropy backward");
  CheckCrossEntropy(logits, targets, statistics, check);
  check.FloatDType({&logits, &grad_logits});
  // May be logits itself; a matrix, because its rows may be padded differently.
  check.Matrix("grad_logits", grad_logits, Cols(logits));
  check.Numel("grad_logits", grad_logits, logits.numel());
  if (check.FailsOn(stream)) return;
  DoCrossEntropyBackward(logits, targets, statistics, scale, grad_logits, stream);
}

void LayerOps::CrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                        const Tensor& statistics, Stream& stream) const {
  OperandCheck check("cross entropy with gradient");
  CheckCrossEntropy(logits, targets, statistics, check);
  check.Numel("loss", loss, DType::kFloat32, 1);
  if (check.FailsOn(stream)) return;
  DoCrossEntropyWithGradient(logits, targets, scale, loss, statistics, stream);
}

bool RegisterLayerOps(DeviceType type, LayerOpsFactory create) {
  Registry()[type] = create;
  return true;
}

LayerOpsFactory RegisteredLayerOps(DeviceType type) {
  const auto found = Registry().find(type);
  return found == Registry().end() ? nullptr : found->second;
}

}  // namespace fsdp
