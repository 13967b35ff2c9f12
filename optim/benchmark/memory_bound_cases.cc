// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/benchmark/kernel_cases.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

std::string ShapeOf(const ModelSizes& sizes, int64_t columns) {
  return absl::StrCat(sizes.name, " ", sizes.rows(), "x", columns);
}

absl::Status MeasureGelu(KernelRunner& runner, const LayerOps& ops, const ModelSizes& sizes, DType dtype) {
  const Shape shape = {sizes.rows(), sizes.inner};
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  const std::string text = ShapeOf(sizes, sizes.inner);
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure({"gelu", text, dtype, 2 * nbytes}, [&] {
    const Tensor x = runner.Random(dtype, shape), out = runner.Zeros(dtype, shape);
    return [&, x, out] { ops.Activate(ActivationKind::kGeluTanh, x, out, stream); };
  }));
  return runner.Measure({"gelu backward", text, dtype, 3 * nbytes}, [&] {
    const Tensor grad = runner.Random(dtype, shape), x = runner.Random(dtype, shape), out = runner.Zeros(dtype, shape);
    return [&, grad, x, out] { ops.ActivateBackward(ActivationKind::kGeluTanh, grad, x, out, stream); };
  });
}

absl::Status MeasureSwiGlu(KernelRunner& runner, const LayerOps& ops, const ModelSizes& sizes, DType dtype) {
  const Shape shape = {sizes.rows(), sizes.inner};
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  const std::string text = ShapeOf(sizes, sizes.inner);
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure({"swiglu", text, dtype, 3 * nbytes}, [&] {
    const Tensor gate = runner.Random(dtype, shape), up = runner.Random(dtype, shape), out = runner.Zeros(dtype, shape);
    return [&, gate, up, out] { ops.ActivateGated(ActivationKind::kSilu, gate, up, out, stream); };
  }));
  return runner.Measure({"swiglu backward", text, dtype, 5 * nbytes}, [&] {
    const Tensor grad = runner.Random(dtype, shape), gate = runner.Random(dtype, shape),
                 up = runner.Random(dtype, shape);
    const Tensor grad_gate = runner.Zeros(dtype, shape), grad_up = runner.Zeros(dtype, shape);
    return [&, grad, gate, up, grad_gate, grad_up] {
      ops.ActivateGatedBackward(ActivationKind::kSilu, grad, gate, up, grad_gate, grad_up, stream);
    };
  });
}

absl::Status MeasureRotation(KernelRunner& runner, const LayerOps& ops, const ModelSizes& sizes, DType dtype) {
  const AttentionShape shape = {.batch = sizes.batch,
                                .seq_len = sizes.seq_len,
                                .num_heads = sizes.heads,
                                .num_kv_heads = sizes.kv_heads,
                                .head_dim = sizes.head_dim};
  const int64_t rows = sizes.rows(), bytes = 2 * rows * shape.qkv_width() * SizeOf(dtype);
  const std::string text = ShapeOf(sizes, shape.qkv_width());
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure({"rotation", text, dtype, bytes}, [&] {
    const Tensor q = runner.Random(dtype, {rows, shape.q_width()}), k = runner.Random(dtype, {rows, shape.kv_width()}),
                 v = runner.Random(dtype, {rows, shape.kv_width()});
    const Tensor angles = runner.Random(dtype, {sizes.seq_len, sizes.head_dim}),
                 qkv = runner.Zeros(dtype, {rows, shape.qkv_width()});
    return [&, q, k, v, angles, qkv] { ops.RotateQkv(q, k, v, angles, shape, qkv, stream); };
  }));
  return runner.Measure({"rotation backward", text, dtype, bytes}, [&] {
    const Tensor grad = runner.Random(dtype, {rows, shape.qkv_width()}),
                 angles = runner.Random(dtype, {sizes.seq_len, sizes.head_dim});
    const Tensor q = runner.Zeros(dtype, {rows, shape.q_width()}), k = runner.Zeros(dtype, {rows, shape.kv_width()}),
                 v = runner.Zeros(dtype, {rows, shape.kv_width()});
    return [&, grad, angles, q, k, v] { ops.RotateQkvBackward(grad, angles, shape, q, k, v, stream); };
  });
}

}  // namespace

absl::Status MeasureElementwise(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                                DType dtype) {
  const LayerOps& ops = *kernels.layers;
  const Shape shape = {sizes.rows(), sizes.width};
  Stream& stream = runner.stream();
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  FSDP_RETURN_IF_ERROR(runner.Measure({"add", ShapeOf(sizes, sizes.width), dtype, 3 * nbytes}, [&] {
    const Tensor a = runner.Random(dtype, shape), b = runner.Random(dtype, shape), out = runner.Zeros(dtype, shape);
    return [&, a, b, out] { ops.Add(a, b, out, stream); };
  }));
  if (sizes.is_llama) {
    FSDP_RETURN_IF_ERROR(MeasureSwiGlu(runner, ops, sizes, dtype));
    return MeasureRotation(runner, ops, sizes, dtype);
  }
  FSDP_RETURN_IF_ERROR(MeasureGelu(runner, ops, sizes, dtype));
  for (const int64_t columns : {sizes.width, 3 * sizes.width, sizes.inner}) {
    const int64_t bytes = sizes.rows() * columns * SizeOf(dtype);
    FSDP_RETURN_IF_ERROR(runner.Measure({"bias backward", ShapeOf(sizes, columns), dtype, bytes}, [&] {
      const Tensor grad = runner.Random(dtype, {sizes.rows(), columns}), bias = runner.Zeros(dtype, {columns});
      return [&, grad, bias] { ops.BiasBackward(grad, bias, stream); };
    }));
  }
  return absl::OkStatus();
}

absl::Status MeasureEmbedding(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                              DType dtype) {
  const LayerOps& ops = *kernels.layers;
  const Shape table_shape = {sizes.vocabulary, sizes.width}, rows_shape = {sizes.rows(), sizes.width};
  const int64_t nbytes = rows_shape.numel() * SizeOf(dtype);
  const std::string text = ShapeOf(sizes, sizes.width);
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure({"embedding", text, dtype, 2 * nbytes}, [&] {
    const Tensor tokens = runner.Tokens(sizes.rows(), sizes.vocabulary);
    const Tensor table = runner.Random(dtype, table_shape), out = runner.Zeros(dtype, rows_shape);
    return [&, tokens, table, out] { ops.Embedding(tokens, table, out, stream); };
  }));
  return runner.Measure({"embedding backward", text, dtype, 3 * nbytes}, [&] {
    const Tensor tokens = runner.Tokens(sizes.rows(), sizes.vocabulary);
    const Tensor grad = runner.Random(dtype, rows_shape), table = runner.Zeros(dtype, table_shape);
    return [&, tokens, grad, table] { ops.EmbeddingBackward(tokens, grad, std::nullopt, table, stream); };
  });
}

absl::Status MeasureCrossEntropy(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                                 DType dtype) {
  const LayerOps& ops = *kernels.layers;
  const Shape shape = {sizes.rows(), sizes.vocabulary};
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  const std::string text = ShapeOf(sizes, sizes.vocabulary);
  Stream& stream = runner.stream();
  // As a head makes them: with padded rows if that suits the device's products better.
  const auto rows = [&] {
    const int64_t row_stride = ops.RowStride(dtype, sizes.vocabulary);
    const Tensor memory = runner.Random(dtype, {sizes.rows(), row_stride});
    return row_stride == sizes.vocabulary ? memory : Tensor::WithPaddedRows(memory.buffer(), dtype, shape, row_stride);
  };
  struct Operands {
    Tensor logits, targets, loss, statistics;
  };
  const auto make = [&] {
    return Operands{rows(), runner.Tokens(sizes.rows(), sizes.vocabulary), runner.Zeros(DType::kFloat32, {1}),
                    runner.Zeros(DType::kFloat32, {sizes.rows(), 2})};
  };
  FSDP_RETURN_IF_ERROR(runner.Measure({"cross entropy", text, dtype, nbytes}, [&] {
    return [&, o = make()] { ops.CrossEntropy(o.logits, o.targets, o.loss, o.statistics, stream); };
  }));
  FSDP_RETURN_IF_ERROR(runner.Measure({"cross entropy backward", text, dtype, 2 * nbytes}, [&] {
    const Operands o = make();
    ops.CrossEntropy(o.logits, o.targets, o.loss, o.statistics, stream);
    return [&, o, grad = rows()] { ops.CrossEntropyBackward(o.logits, o.targets, o.statistics, 1, grad, stream); };
  }));
  // In place: from the second launch on the logits are gradients, which are no more regular than the logits.
  return runner.Measure({"cross entropy with gradient", text, dtype, 2 * nbytes}, [&] {
    return [&, o = make()] { ops.CrossEntropyWithGradient(o.logits, o.targets, 1, o.loss, o.statistics, stream); };
  });
}

}  // namespace fsdp
