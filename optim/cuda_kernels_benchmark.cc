// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a CUDA device, one line of JSON for each. Kernels that memory bounds are compared with a copy of as
// many bytes within device memory in the same run:
//
//   {"kernel": "layer norm", "dtype": "bfloat16", "bytes": ..., "microseconds": ..., "gb_per_s": ..., "of_copy": ...}
//   {"kernel": "attention", "dtype": "bfloat16", "flops": ..., "microseconds": ..., "tflop_per_s": ...}
//
//   bytes     what the kernel must read plus what it must write, once each
//   of_copy   its bytes per second over the copy's; the goal is 0.9
//   flops     multiplications and additions that the result needs; of causal attention the lower triangle's
//
// A time is the median over kRounds of a burst of kBurst launches, so that launching is hidden; kernel and copy take
// turns. Shapes are those of GPT-2 124M with 16 sequences of 1024 tokens; --rows= gives other numbers of tokens. It has
// run on the emulator only, where its times mean nothing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/command_line.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/update_ops.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/tensor.h"

ABSL_FLAG(int64_t, rows, 16 * 1024, "tokens, 2 or more");

namespace fsdp {
namespace {

constexpr int kRounds = 7;
constexpr int kBurst = 20;
constexpr int64_t kColumns = 768;
constexpr int64_t kClasses = 50257;

class KernelsBenchmark {
 public:
  KernelsBenchmark(std::shared_ptr<Device> device, int64_t rows)
      : device_(std::move(device)),
        rows_(rows),
        layer_ops_(*LayerOpsFor(*device_)),
        update_ops_(*UpdateOpsFor(*device_)),
        stream_(*device_->CreateStream("benchmark")) {}

  void Run() {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      Elementwise(dtype);
      Sums(dtype);
      Norms(dtype);
      Embedding(dtype);
      Rotation(dtype);
      CrossEntropy(dtype);
      AdamW(dtype);
      Matmul(dtype);
      Attention(dtype);
    }
  }

 private:
  Tensor New(DType dtype, Shape shape) {
    const Tensor t = *Tensor::Empty(*device_, dtype, std::move(shape));
    device_->ops().Zero(t, *stream_);
    return t;
  }

  // Seconds for each of kBurst launches that are issued without a wait in between.
  double Seconds(const std::function<void()>& launch) {
    Check(stream_->Synchronize().ok(), "kernels run");
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBurst; ++i) launch();
    Check(stream_->Synchronize().ok(), "kernels run");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kBurst;
  }

  // `bytes` are read or written by `launch`; a copy reads half of them and writes half.
  void Measure(std::string_view kernel, DType dtype, int64_t bytes, const std::function<void()>& launch) {
    const Tensor from = New(DType::kUInt8, {bytes / 2}), to = New(DType::kUInt8, {bytes / 2});
    const auto copy = [&] { stream_->CopyAsync(to.data(), from.data(), from.nbytes()); };
    std::vector<double> kernel_seconds, copy_seconds;
    for (int round = 0; round < kRounds + 1; ++round) {
      const double kernel_time = Seconds(launch), copy_time = Seconds(copy);
      if (round == 0) continue;  // warms up
      kernel_seconds.push_back(kernel_time);
      copy_seconds.push_back(copy_time);
    }
    std::sort(kernel_seconds.begin(), kernel_seconds.end());
    std::sort(copy_seconds.begin(), copy_seconds.end());
    const double seconds = kernel_seconds[kRounds / 2];
    std::printf(
        "{\"kernel\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, \"microseconds\": %.1f, \"gb_per_s\": %.0f, "
        "\"of_copy\": %.3f}\n",
        std::string(kernel).c_str(), std::string(DTypeName(dtype)).c_str(), static_cast<long long>(bytes),
        seconds * 1e6, static_cast<double>(bytes) / seconds / 1e9, copy_seconds[kRounds / 2] / seconds);
    std::fflush(stdout);
  }

  // For kernels that arithmetic bounds, and not memory. Prints operations per second.
  void MeasureFlops(std::string_view kernel, DType dtype, double flops, const std::function<void()>& launch) {
    std::vector<double> seconds;
    for (int round = 0; round < kRounds + 1; ++round) seconds.push_back(Seconds(launch));
    std::sort(seconds.begin() + 1, seconds.end());  // the first warms up
    const double median = seconds[1 + kRounds / 2];
    std::printf(
        "{\"kernel\": \"%s\", \"dtype\": \"%s\", \"flops\": %.0f, \"microseconds\": %.1f, \"tflop_per_s\": %.1f}\n",
        std::string(kernel).c_str(), std::string(DTypeName(dtype)).c_str(), flops, median * 1e6, flops / median / 1e12);
    std::fflush(stdout);
  }

  void Elementwise(DType dtype) {
    const Tensor a = New(dtype, {rows_, 4 * kColumns}), b = New(dtype, {rows_, 4 * kColumns}),
                 c = New(dtype, {rows_, 4 * kColumns});
    const Tensor bias = New(dtype, {4 * kColumns});
    const int64_t bytes = a.nbytes();
    Measure("add", dtype, 3 * bytes, [&] { layer_ops_->Add(a, b, c, *stream_); });
    Measure("gelu", dtype, 2 * bytes, [&] { layer_ops_->Activate(ActivationKind::kGeluTanh, a, b, *stream_); });
    Measure("gelu backward", dtype, 3 * bytes,
            [&] { layer_ops_->ActivateBackward(ActivationKind::kGeluTanh, a, b, c, *stream_); });
    Measure("swiglu", dtype, 3 * bytes, [&] { layer_ops_->ActivateGated(ActivationKind::kSilu, a, b, c, *stream_); });
    const Tensor d = New(dtype, a.shape()), e = New(dtype, a.shape());
    Measure("swiglu backward", dtype, 5 * bytes,
            [&] { layer_ops_->ActivateGatedBackward(ActivationKind::kSilu, a, b, c, d, e, *stream_); });
  }

  // The kernels that FSDP itself runs on flat buffers.
  void Sums(DType dtype) {
    const Tensor a = New(dtype, {rows_, 4 * kColumns}), b = New(dtype, {rows_, 4 * kColumns});
    const Tensor bias = New(dtype, {4 * kColumns});
    const int64_t bytes = a.nbytes();
    Measure("bias backward", dtype, bytes, [&] { layer_ops_->BiasBackward(a, bias, *stream_); });
    const Tensor factor = New(DType::kFloat32, {1});
    Measure("scale", dtype, 2 * bytes, [&] { device_->ops().ScaleBy(a, factor, *stream_); });
    Measure("accumulate", dtype, 3 * bytes, [&] { device_->ops().Accumulate(a, b, *stream_); });
    const Tensor wide = New(DType::kFloat32, a.shape()), norm = New(DType::kFloat32, {1});
    Measure("cast to float32 and divide", dtype, bytes + wide.nbytes(),
            [&] { device_->ops().CastDivide(a, wide, 8, *stream_); });
    Measure("squared norm", dtype, bytes, [&] { device_->ops().AccumulateSquaredNorm(a, norm, *stream_); });
    Measure("check finite", dtype, bytes, [&] { device_->ops().CheckFinite(a, norm, *stream_); });
    Measure("intervals", dtype, 2 * bytes,
            [&] { device_->ops().CastDivideIntervals(a, b, Transposed(a.numel()), 1, *stream_); });
  }

  // Two parameters' chunks of eight ranks, from rows of ranks to rows of parameters.
  static std::vector<IntervalCopy> Transposed(int64_t numel) {
    constexpr int64_t kParameters = 2, kRanks = 8;
    const int64_t chunk = numel / kParameters / kRanks;
    std::vector<IntervalCopy> copies;
    for (int64_t i = 0; i < kParameters; ++i) {
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        copies.push_back({(rank * kParameters + i) * chunk, (i * kRanks + rank) * chunk, chunk});
      }
    }
    return copies;
  }

  void Norms(DType dtype) {
    const Tensor x = New(dtype, {rows_, kColumns}), out = New(dtype, {rows_, kColumns}), grad = New(dtype, x.shape());
    const Tensor weight = New(dtype, {kColumns}), bias = New(dtype, {kColumns});
    const Tensor grad_weight = New(dtype, {kColumns}), grad_bias = New(dtype, {kColumns});
    const Tensor mean = New(DType::kFloat64, {rows_}), rstd = New(DType::kFloat64, {rows_});
    Measure("layer norm", dtype, 2 * x.nbytes(),
            [&] { layer_ops_->LayerNorm(x, weight, bias, 1e-5f, out, mean, rstd, *stream_); });
    Measure("layer norm backward", dtype, 3 * x.nbytes(),
            [&] { layer_ops_->LayerNormBackward(out, x, weight, mean, rstd, grad, grad_weight, grad_bias, *stream_); });
    Measure("rms norm", dtype, 2 * x.nbytes(), [&] { layer_ops_->RmsNorm(x, weight, 1e-5f, out, rstd, *stream_); });
    Measure("rms norm backward", dtype, 3 * x.nbytes(),
            [&] { layer_ops_->RmsNormBackward(out, x, weight, rstd, grad, grad_weight, *stream_); });
  }

  // Tokens that hardly repeat.
  void Embedding(DType dtype) {
    std::vector<int32_t> values(rows_);
    for (int64_t i = 0; i < rows_; ++i) values[i] = static_cast<int32_t>(i * 7919 % kClasses);
    const Tensor tokens = New(DType::kInt32, {rows_});
    stream_->CopyAsync(tokens.data(), values.data(), tokens.nbytes());
    Check(stream_->Synchronize().ok(), "tokens are copied");
    const Tensor table = New(dtype, {kClasses, kColumns}), rows = New(dtype, {rows_, kColumns});
    Measure("embedding", dtype, 2 * rows.nbytes(), [&] { layer_ops_->Embedding(tokens, table, rows, *stream_); });
    Measure("embedding backward", dtype, 3 * rows.nbytes(),
            [&] { layer_ops_->EmbeddingBackward(tokens, rows, std::nullopt, table, *stream_); });
  }

  AttentionShape Heads() const {
    const int64_t seq_len = std::min<int64_t>(rows_, 1024);
    return {.batch = rows_ / seq_len, .seq_len = seq_len, .num_heads = 12, .num_kv_heads = 12, .head_dim = 64};
  }

  void Rotation(DType dtype) {
    const AttentionShape shape = Heads();
    const int64_t rows = shape.batch * shape.seq_len;
    const Tensor q = New(dtype, {rows, kColumns}), k = New(dtype, {rows, kColumns}), v = New(dtype, {rows, kColumns});
    const Tensor qkv = New(dtype, {rows, 3 * kColumns}), rotation = New(dtype, {shape.seq_len, shape.head_dim});
    Measure("rotation", dtype, 2 * qkv.nbytes(),
            [&] { layer_ops_->RotateQkv(q, k, v, rotation, shape, qkv, *stream_); });
    Measure("rotation backward", dtype, 2 * qkv.nbytes(),
            [&] { layer_ops_->RotateQkvBackward(qkv, rotation, shape, q, k, v, *stream_); });
  }

  void Matmul(DType dtype) {
    const Tensor a = New(dtype, {rows_, kColumns}), b = New(dtype, {kColumns, 4 * kColumns});
    const Tensor bias = New(dtype, {4 * kColumns}), c = New(dtype, {rows_, 4 * kColumns});
    const double flops = 2.0 * static_cast<double>(rows_) * kColumns * 4 * kColumns;
    MeasureFlops("linear with bias", dtype, flops, [&] { layer_ops_->Matmul(a, b, bias, c, {}, *stream_); });
    MeasureFlops("linear weight gradient", dtype, flops,
                 [&] { layer_ops_->Matmul(a, c, Tensor(), b, {.transpose_a = true, .accumulate = true}, *stream_); });
  }

  void Attention(DType dtype) {
    const AttentionShape shape = Heads();
    const int64_t rows = shape.batch * shape.seq_len;
    const Tensor qkv = New(dtype, {rows, 3 * kColumns}), out = New(dtype, {rows, kColumns});
    const Tensor grad = New(dtype, qkv.shape()), grad_out = New(dtype, out.shape());
    const Tensor statistics = New(DType::kFloat32, {shape.statistics_numel()});
    // Two products forward; backward five, of which one is the scores again.
    const double product = static_cast<double>(rows) * static_cast<double>(shape.seq_len) * kColumns;
    MeasureFlops("attention", dtype, 2 * product,
                 [&] { layer_ops_->CausalAttention(qkv, shape, out, statistics, *stream_); });
    MeasureFlops("attention backward", dtype, 5 * product,
                 [&] { layer_ops_->CausalAttentionBackward(grad_out, qkv, out, statistics, shape, grad, *stream_); });
  }

  void CrossEntropy(DType dtype) {
    const Tensor logits = New(dtype, {rows_ / 2, kClasses}), targets = New(DType::kInt32, {rows_ / 2});
    const Tensor loss = New(DType::kFloat32, {1}), statistics = New(DType::kFloat32, {rows_ / 2, 2});
    Measure("cross entropy", dtype, logits.nbytes(),
            [&] { layer_ops_->CrossEntropy(logits, targets, loss, statistics, *stream_); });
    Measure("cross entropy backward", dtype, 2 * logits.nbytes(),
            [&] { layer_ops_->CrossEntropyBackward(logits, targets, statistics, 1, logits, *stream_); });
  }

  void AdamW(DType dtype) {
    const int64_t numel = rows_ * kColumns * 4;
    AdamWUpdate update = {.scalars = {.negative_decay = -1e-4f,
                                      .one_minus_beta1 = 0.1f,
                                      .beta2 = 0.999f,
                                      .one_minus_beta2 = 0.001f,
                                      .negative_step_size = -1e-3f,
                                      .sqrt_bias_correction2 = 0.5f,
                                      .eps = 1e-8f},
                          .data = New(DType::kFloat32, {numel}),
                          .grad = New(dtype, {numel}),
                          .exp_avg = New(DType::kFloat32, {numel}),
                          .exp_avg_sq = New(DType::kFloat32, {numel})};
    Measure("adamw", dtype, 6 * update.data.nbytes() + update.grad.nbytes(),
            [&] { update_ops_->AdamW({update}, *stream_); });
    update.extras = {.grad_factor = New(DType::kFloat32, {1}), .compute_copy = New(DType::kBFloat16, {numel})};
    Measure("adamw, scaled, with bfloat16 copy", dtype,
            6 * update.data.nbytes() + update.grad.nbytes() + update.extras.compute_copy.nbytes(),
            [&] { update_ops_->AdamW({update}, *stream_); });
  }

  const std::shared_ptr<Device> device_;
  const int64_t rows_;
  const std::shared_ptr<const LayerOps> layer_ops_;
  const UpdateOps* const update_ops_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::optional<int> usage =
      fsdp::ParseFlags(argc, argv, "cuda_kernels_benchmark [flags]: the kernels of a CUDA device, a line of JSON each");
  if (usage) return *usage;
  const int64_t rows = absl::GetFlag(FLAGS_rows);
  if (rows < 2) {
    return fsdp::ReportUsageError("cuda_kernels_benchmark",
                                  absl::InvalidArgumentError(absl::StrCat("--rows=", rows, ", expected 2 or more")));
  }
  const absl::StatusOr<std::shared_ptr<fsdp::Device>> device = fsdp::CreateCudaDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  fsdp::KernelsBenchmark(*device, rows).Run();
  return 0;
}
