// SPDX-License-Identifier: Apache-2.0
//
// The cost of the host device's streams: putting work on a stream, handing it from one to another, waiting for it.
// Enqueue rows are per 1,000 pieces of work (items_per_second counts pieces), measured on the enqueuing thread.

#include <chrono>
#include <memory>

#include "benchmark/benchmark.h"
#include "fsdp/base/check.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

std::unique_ptr<Stream> NewStream(Device& device) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = device.CreateStream("benchmark");
  Check(stream.ok(), "cannot create a stream");
  return *std::move(stream);
}

// Puts kBatch pieces of work on `stream` by `enqueue`, on the clock; waits for them, off it.
constexpr int kBatch = 1000;

template <typename Enqueue>
void MeasureEnqueue(benchmark::State& state, Stream& stream, Enqueue enqueue) {
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) enqueue();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    Check(stream.Synchronize().ok(), "the stream failed");
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void Enqueue(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  int64_t sum = 0;
  MeasureEnqueue(state, *stream, [&] {
    stream->Run([&sum] {
      ++sum;
      return absl::OkStatus();
    });
  });
}
BENCHMARK(Enqueue)->UseManualTime();

// The same for a kernel that holds two tensors.
void EnqueueKernel(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  absl::StatusOr<Tensor> a = Tensor::Empty(*device, DType::kFloat32, {16});
  absl::StatusOr<Tensor> b = Tensor::Empty(*device, DType::kFloat32, {16});
  Check(a.ok() && b.ok(), "out of memory");
  device->ops().Zero(*a, *stream);
  device->ops().Zero(*b, *stream);
  MeasureEnqueue(state, *stream, [&] { device->ops().Accumulate(*a, *b, *stream); });
}
BENCHMARK(EnqueueKernel)->UseManualTime();

void EnqueueEvent(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  MeasureEnqueue(state, *stream, [&] { stream->Wait(stream->Record()); });
}
BENCHMARK(EnqueueEvent)->UseManualTime();

// Puts a piece of work on the stream and waits for it.
void RoundTrip(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  for (auto _ : state) {
    stream->Run([] { return absl::OkStatus(); });
    Check(stream->Synchronize().ok(), "the stream failed");
  }
}
BENCHMARK(RoundTrip)->UseRealTime();

// Work that goes to and fro between two streams, per hand-over.
void HandOver(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto a = NewStream(*device);
  auto b = NewStream(*device);
  constexpr int kRounds = 100;
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
      b->Wait(a->Record());
      a->Wait(b->Record());
    }
    Check(a->Synchronize().ok(), "the stream failed");
  }
  state.SetItemsProcessed(state.iterations() * kRounds * 2);
}
BENCHMARK(HandOver)->UseRealTime();

void AllocateCached(benchmark::State& state) {
  auto device = CreateHostDevice();
  for (auto _ : state) benchmark::DoNotOptimize(device->Allocate(state.range(0)));
}
BENCHMARK(AllocateCached)->Arg(1024)->Arg(1 << 20)->Arg(1 << 26);

}  // namespace
}  // namespace fsdp
