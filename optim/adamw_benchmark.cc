// SPDX-License-Identifier: Apache-2.0
//
// The optimizers' fused passes compared with memcpy, one thread, in one run, because absolute numbers of a shared
// machine mean little. Sizes: one that fits in a second-level cache and one that fits in no cache.
//
//   bytes_per_second   bytes read plus bytes written: 28 a parameter for AdamW with float32 gradients (p, m, v both
//                      ways, g once), 26 with bfloat16, 20 for SGD with momentum; memcpy twice its size
//   items_per_second   parameters
//
// Memory is touched before the clock starts.
#include <cstdint>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "fsdp/optim/update_kernels.h"

namespace fsdp {
namespace {

constexpr int64_t kSmall = int64_t{1} << 15;
constexpr int64_t kLarge = int64_t{1} << 24;

// 0x3c003c00 is an ordinary number as bfloat16 as well. (With a gradient of 0 the averages would become denormal, and
// slow.)
constexpr float kGrad = 0.00782680511f;

void Report(benchmark::State& state, int64_t bytes_per_item) {
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * state.range(0) * bytes_per_item);
}

void Memcpy(benchmark::State& state) {
  std::vector<float> source(state.range(0), 1.0f), destination(state.range(0), 0.0f);
  for (auto _ : state) {
    std::memcpy(destination.data(), source.data(), source.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  Report(state, 8);
}

void AdamWStep(benchmark::State& state, DType grad_dtype) {
  const AdamWScalars scalars = {.negative_decay = -1e-4f,
                                .one_minus_beta1 = 0.1f,
                                .beta2 = 0.999f,
                                .one_minus_beta2 = 0.001f,
                                .negative_step_size = -1e-3f,
                                .sqrt_bias_correction2 = 0.5f,
                                .eps = 1e-8f};
  const int64_t numel = state.range(0);
  std::vector<float> p(numel, 1.0f), m(numel, 0.5f), v(numel, 0.5f);
  const std::vector<float> grad(numel, kGrad);
  for (auto _ : state) {
    UpdateAdamW(scalars, {numel, grad_dtype, grad.data(), DType::kFloat32, p.data()}, m.data(), v.data());
    benchmark::ClobberMemory();
  }
  Report(state, 24 + SizeOf(grad_dtype));
}

void SgdStep(benchmark::State& state) {
  const SgdScalars scalars = {.weight_decay = 0.1f,
                              .momentum = 0.9f,
                              .one_minus_dampening = 1,
                              .negative_lr = -1e-3f,
                              .nesterov = false,
                              .first = false};
  const int64_t numel = state.range(0);
  std::vector<float> p(numel, 1.0f), buffer(numel, 0.5f);
  const std::vector<float> grad(numel, kGrad);
  for (auto _ : state) {
    UpdateSgd(scalars, {numel, DType::kFloat32, grad.data(), DType::kFloat32, p.data()}, buffer.data());
    benchmark::ClobberMemory();
  }
  Report(state, 20);
}

BENCHMARK(Memcpy)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(AdamWStep, float32, DType::kFloat32)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(AdamWStep, bfloat16, DType::kBFloat16)->Arg(kSmall)->Arg(kLarge);
BENCHMARK(SgdStep)->Arg(kSmall)->Arg(kLarge);

}  // namespace
}  // namespace fsdp
