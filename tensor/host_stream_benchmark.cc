// SPDX-License-Identifier: Apache-2.0
//
// What the host device's streams cost: putting work on a stream, handing it from one to another, waiting for it.

#include <memory>

#include "base/check.h"
#include "benchmark/benchmark.h"
#include "tensor/host_device.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

std::unique_ptr<Stream> NewStream(Device& device) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = device.CreateStream("benchmark");
  Check(stream.ok(), "cannot create a stream");
  return *std::move(stream);
}

// Per piece of work, as the thread that puts it there sees it, while the stream is busy with them.
void Enqueue(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  int64_t sum = 0;
  for (auto _ : state) {
    stream->Run([&sum] {
      ++sum;
      return absl::OkStatus();
    });
    if (state.iterations() % 1024 == 0) {
      state.PauseTiming();
      Check(stream->Synchronize().ok(), "the stream failed");
      state.ResumeTiming();
    }
  }
  Check(stream->Synchronize().ok(), "the stream failed");
}
BENCHMARK(Enqueue)->UseRealTime();

// The same for a kernel that holds two tensors.
void EnqueueKernel(benchmark::State& state) {
  auto device = CreateHostDevice();
  auto stream = NewStream(*device);
  absl::StatusOr<Tensor> a = Tensor::Empty(*device, DType::kFloat32, {16});
  absl::StatusOr<Tensor> b = Tensor::Empty(*device, DType::kFloat32, {16});
  Check(a.ok() && b.ok(), "out of memory");
  device->ops().Zero(*a, *stream);
  device->ops().Zero(*b, *stream);
  for (auto _ : state) device->ops().Accumulate(*a, *b, *stream);
  Check(stream->Synchronize().ok(), "the stream failed");
}
BENCHMARK(EnqueueKernel)->UseRealTime();

// One piece of work and the wait for it.
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
