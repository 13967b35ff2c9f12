// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/benchmark/kernel_cases.h"

namespace fsdp {
namespace {

// out [rows, to] = x [rows, from] w.
struct Layer {
  std::string name;
  int64_t rows, from, to;
  bool weight_by_output;  // w is [to, from] in memory, as PyTorch's Linear has it, and not [from, to], as Conv1D
  bool has_bias;
  int64_t row_stride;  // of out

  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(from) * static_cast<double>(to); }
  Shape weight() const { return weight_by_output ? Shape{to, from} : Shape{from, to}; }
  int64_t bytes(DType dtype) const { return (rows * (from + to) + from * to) * SizeOf(dtype); }
};

std::vector<Layer> LayersOf(const ModelSizes& sizes) {
  const int64_t rows = sizes.rows(), width = sizes.width, inner = sizes.inner;
  if (sizes.is_llama) {
    const int64_t kv_width = sizes.kv_heads * sizes.head_dim;
    return {{"q", rows, width, width, true, false, width},
            {"k", rows, width, kv_width, true, false, kv_width},
            {"up", rows, width, inner, true, false, inner},
            {"down", rows, inner, width, true, false, width}};
  }
  return {{"qkv", rows, width, 3 * width, false, true, 3 * width},
          {"proj", rows, width, width, false, true, width},
          {"up", rows, width, inner, false, true, inner},
          {"down", rows, inner, width, false, true, width}};
}

// Rows of `columns` that are `row_stride` elements apart.
Tensor RandomRows(KernelRunner& runner, DType dtype, Shape shape, int64_t row_stride) {
  const Tensor memory = runner.Random(dtype, {shape.dim(0), row_stride});
  if (row_stride == shape.dim(1)) return memory;
  return Tensor::WithPaddedRows(memory.buffer(), dtype, std::move(shape), row_stride);
}

// The three products of a layer, as nn/linear.cc makes them; `name` is the prefix of their names.
absl::Status MeasureLayer(KernelRunner& runner, const LayerOps& ops, const Layer& layer, const std::string& name,
                          DType dtype) {
  const Shape x_shape = {layer.rows, layer.from}, out_shape = {layer.rows, layer.to};
  const double deviation = 1 / std::sqrt(static_cast<double>(layer.from));
  const std::string stride = layer.row_stride == layer.to ? "" : absl::StrCat(" stride ", layer.row_stride);
  const std::string text = absl::StrCat(layer.name, " ", layer.rows, "x", layer.from, "x", layer.to, stride);
  const auto kernel = [&](const char* product) {
    return KernelCase{name + product, text, dtype, layer.bytes(dtype), layer.flops()};
  };
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure(kernel(""), [&] {
    const Tensor x = runner.Random(dtype, x_shape), weight = runner.Random(dtype, layer.weight(), deviation);
    const Tensor bias = layer.has_bias ? runner.Random(dtype, {layer.to}) : Tensor();
    const Tensor out = RandomRows(runner, dtype, out_shape, layer.row_stride);
    return [&, x, weight, bias, out] {
      ops.Matmul(x, weight, bias, out, {.transpose_b = layer.weight_by_output}, stream);
    };
  }));
  FSDP_RETURN_IF_ERROR(runner.Measure(kernel(" input gradient"), [&] {
    const Tensor grad = RandomRows(runner, dtype, out_shape, layer.row_stride);
    const Tensor weight = runner.Random(dtype, layer.weight(), deviation);
    const Tensor grad_x = runner.Zeros(dtype, x_shape);
    return [&, grad, weight, grad_x] {
      ops.Matmul(grad, weight, Tensor(), grad_x, {.transpose_b = !layer.weight_by_output}, stream);
    };
  }));
  return runner.Measure(kernel(" weight gradient"), [&] {
    const Tensor x = runner.Random(dtype, x_shape);
    const Tensor grad = RandomRows(runner, dtype, out_shape, layer.row_stride);
    const Tensor grad_weight = runner.Zeros(dtype, layer.weight());
    const Tensor &a = layer.weight_by_output ? grad : x, &b = layer.weight_by_output ? x : grad;
    return [&, a, b, grad_weight] {
      ops.Matmul(a, b, Tensor(), grad_weight, {.transpose_a = true, .accumulate = true}, stream);
    };
  });
}

struct Rounding {
  AttentionRounding rounding;
  const char* name;
};

constexpr Rounding kRoundings[] = {
    {AttentionRounding::kOnline, "online"},
    {AttentionRounding::kEager, "eager"},
    {AttentionRounding::kFused, "fused"},
};

// True if the device has kernels for `shape`: without cuDNN it may not have any for kOnline.
bool HasKernels(KernelRunner& runner, const LayerOps& ops, const AttentionShape& shape, DType dtype) {
  const int64_t rows = shape.batch * shape.seq_len;
  const std::unique_ptr<Stream> trial = *runner.device().CreateStream("trial");
  const Tensor qkv = runner.Random(dtype, {rows, shape.qkv_width()}),
               out = runner.Zeros(dtype, {rows, shape.q_width()});
  const Tensor statistics = runner.Zeros(DType::kFloat32, {shape.statistics_numel()});
  trial->Wait(runner.stream().Record());
  ops.CausalAttention(qkv, shape, out, statistics, *trial);
  return !absl::IsUnimplemented(trial->Synchronize());
}

absl::Status MeasureRounding(KernelRunner& runner, const LayerOps& ops, const AttentionShape& shape,
                             const std::string& name, DType dtype) {
  const int64_t rows = shape.batch * shape.seq_len;
  const std::string text = absl::StrCat("b", shape.batch, " t", shape.seq_len, " h", shape.num_heads, "/",
                                        shape.kv_heads(), " d", shape.head_dim);
  // One product of forward, of the lower triangle. Forward has two, backward five, of which one is the scores again.
  const double product =
      static_cast<double>(rows) * static_cast<double>(shape.seq_len) * static_cast<double>(shape.q_width());
  const int64_t heads_bytes = rows * shape.q_width() * SizeOf(dtype),
                qkv_bytes = rows * shape.qkv_width() * SizeOf(dtype);
  struct Operands {
    Tensor qkv, out, statistics;
  };
  const auto make = [&] {
    return Operands{runner.Random(dtype, {rows, shape.qkv_width()}), runner.Zeros(dtype, {rows, shape.q_width()}),
                    runner.Zeros(DType::kFloat32, {shape.statistics_numel()})};
  };
  Stream& stream = runner.stream();
  FSDP_RETURN_IF_ERROR(runner.Measure({name, text, dtype, qkv_bytes + heads_bytes, 2 * product}, [&] {
    const Operands of = make();
    return [&, of] { ops.CausalAttention(of.qkv, shape, of.out, of.statistics, stream); };
  }));
  const KernelCase backward = {name + " backward", text, dtype, 2 * (qkv_bytes + heads_bytes), 5 * product};
  return runner.Measure(backward, [&] {
    const Operands of = make();
    ops.CausalAttention(of.qkv, shape, of.out, of.statistics, stream);
    const Tensor grad_out = runner.Random(dtype, of.out.shape()), grad_qkv = runner.Zeros(dtype, of.qkv.shape());
    return [&, of, grad_out, grad_qkv] {
      ops.CausalAttentionBackward(grad_out, of.qkv, of.out, of.statistics, shape, grad_qkv, stream);
    };
  });
}

}  // namespace

absl::Status MeasureProducts(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes, DType dtype) {
  for (Layer layer : LayersOf(sizes)) {
    layer.name = absl::StrCat(sizes.name, " ", layer.name);
    FSDP_RETURN_IF_ERROR(MeasureLayer(runner, *kernels.layers, layer, "product", dtype));
  }
  return absl::OkStatus();
}

absl::Status MeasureHead(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                         int64_t row_stride, DType dtype) {
  const Layer head = {sizes.name, sizes.rows(), sizes.width, sizes.vocabulary, true, false, row_stride};
  return MeasureLayer(runner, *kernels.layers, head, "head", dtype);
}

absl::Status MeasureAttention(KernelRunner& runner, const DeviceKernels& kernels, const AttentionShape& shape,
                              DType dtype) {
  for (const auto& [rounding, name] : kRoundings) {
    AttentionShape rounded = shape;
    rounded.rounding = rounding;
    rounded.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    if (!HasKernels(runner, *kernels.layers, rounded, dtype)) continue;
    FSDP_RETURN_IF_ERROR(MeasureRounding(runner, *kernels.layers, rounded, absl::StrCat("attention ", name), dtype));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
