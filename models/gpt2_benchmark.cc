// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward of GPT-2 in one process on one kernel thread, compared with oneDNN's matrix product of 1024 x
// 1024 x 1024 in the same run, the most that the processor can do.
//
//   items_per_second   tokens (Gpt2)
//   flops              floating-point operations of matrix products a second: 6 a parameter and token, and
//                      12 n_embd seq_len a block and token for attention, of which a causal kernel may skip near half
//
//   peak_bytes         allocated at the most during a step, in addition to parameters and gradients (Gpt2)
//
// head is a small model with GPT-2's vocabulary, in which logits are most of the memory, and chunks the same with
// Gpt2Config::loss_chunks of 8.
//
// All by process CPU time, so that other processes on the machine do not count. --benchmark_filter=tiny is the 3.4 M
// parameter model, small the 29.5 M one of reference figures.
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "fsdp/base/check.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

constexpr int64_t kSeqLen = 256;

Tensor Ones(Device& device, DType dtype, const Shape& shape, Stream& stream) {
  const Tensor wide = *Tensor::Empty(device, DType::kFloat32, shape);
  for (int64_t i = 0; i < wide.numel(); ++i) wide.data_as<float>()[i] = 1;
  const Tensor t = *Tensor::Empty(device, dtype, shape);
  device.ops().CastDivide(wide, t, 1, stream);
  Check(stream.Synchronize().ok(), "cast");
  return t;
}

void SetFlops(benchmark::State& state, double flops) {
  state.counters["flops"] =
      benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void Matmul(benchmark::State& state, DType dtype) {
  const auto device = CreateHostDevice();
  const auto ops = *LayerOpsFor(*device);
  const auto stream = *device->CreateStream("compute");
  const Tensor a = Ones(*device, dtype, {1024, 1024}, *stream), b = Ones(*device, dtype, {1024, 1024}, *stream);
  const Tensor c = Ones(*device, dtype, {1024, 1024}, *stream);
  for (auto _ : state) {
    ops->Matmul(a, b, Tensor(), c, {}, *stream);
    Check(stream->Synchronize().ok(), "matmul");
  }
  SetFlops(state, 2.0 * 1024 * 1024 * 1024);
}

// Parameters and gradients in `dtype`, as FSDP's mixed precision binds them.
int64_t Bind(Module& model, Device& device, DType dtype, Stream& stream) {
  Check(model.Materialize(device, /*seed=*/0).ok(), "materialize");
  int64_t count = 0;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    if (parameter->fqn != name) continue;
    const Tensor data = *Tensor::Empty(device, dtype, parameter->shape);
    device.ops().CastDivide(parameter->data, data, 1, stream);
    parameter->data = data;
    parameter->grad = *Tensor::Empty(device, dtype, parameter->shape);
    device.ops().Zero(parameter->grad, stream);
    count += parameter->shape.numel();
  }
  return count;
}

absl::Status StepByModel(Module& model, const Tensor& tokens, Tape& tape) {
  const absl::StatusOr<TensorList> loss = model.Forward(TensorList{tokens, tokens}, tape);
  return loss.ok() ? model.Backward(TensorList{Tensor()}, tape).status() : loss.status();
}

void Gpt2(benchmark::State& state, const Gpt2Config& config, int64_t rows, DType dtype) {
  const auto device = CreateHostDevice();
  const auto ops = *LayerOpsFor(*device);
  const auto stream = *device->CreateStream("compute");
  const auto model = *MakeGpt2(config);
  const int64_t num_parameters = Bind(*model, *device, dtype, *stream);
  const Tensor tokens = *Tensor::Empty(*device, DType::kInt32, {rows, kSeqLen});
  for (int64_t i = 0; i < tokens.numel(); ++i) tokens.data_as<int32_t>()[i] = static_cast<int32_t>(i * i % 509);
  const auto step = [&] {
    Tape tape(*stream, *ops);
    if (config.loss_chunks > 1) {
      Check(StepByModel(*model, tokens, tape).ok(), "step by chunks");
      Check(stream->Synchronize().ok(), "step");
      return;
    }
    const CrossEntropyLoss criterion;
    const Tensor logits = *model->Forward(tokens, tape);
    Check(criterion.Forward(logits, tokens, tape).ok(), "loss");
    Check(model->Backward(*criterion.Backward(1, tape), tape).ok(), "backward");
    Check(stream->Synchronize().ok(), "step");
  };
  step();  // touches the memory and makes oneDNN's primitives
  const int64_t kept = device->allocated_bytes();
  device->ResetPeak();
  for (auto _ : state) step();
  state.counters["peak_bytes"] = static_cast<double>(device->peak_allocated_bytes() - kept);
  state.SetItemsProcessed(state.iterations() * tokens.numel());
  const int64_t attention = 12 * config.n_layer * config.n_embd * kSeqLen;
  SetFlops(state, static_cast<double>((6 * num_parameters + attention) * tokens.numel()));
}

Gpt2Config Sizes(int64_t n_layer, int64_t n_embd, int64_t n_head, int64_t vocab_size) {
  Gpt2Config config;
  config.n_layer = n_layer;
  config.n_embd = n_embd;
  config.n_head = n_head;
  config.vocab_size = vocab_size;
  config.n_positions = kSeqLen;
  return config;
}

const Gpt2Config kTiny = Sizes(4, 256, 4, 512);
const Gpt2Config kSmall = Sizes(8, 512, 8, 8192);
const Gpt2Config kHead = Sizes(2, 512, 8, 50257);

Gpt2Config InChunks(Gpt2Config config) {
  config.loss_chunks = 8;
  return config;
}

BENCHMARK_CAPTURE(Matmul, float32, DType::kFloat32)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, tiny_float32, kTiny, 4, DType::kFloat32)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, small_float32, kSmall, 2, DType::kFloat32)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Matmul, bfloat16, DType::kBFloat16)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, tiny_bfloat16, kTiny, 4, DType::kBFloat16)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, small_bfloat16, kSmall, 2, DType::kBFloat16)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, head_float32, kHead, 8, DType::kFloat32)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, chunks_float32, InChunks(kHead), 8, DType::kFloat32)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, head_bfloat16, kHead, 8, DType::kBFloat16)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Gpt2, chunks_bfloat16, InChunks(kHead), 8, DType::kBFloat16)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fsdp
