// SPDX-License-Identifier: Apache-2.0
//
// Conversions and kernels of the host next to memcpy, one thread, in one run, because absolute numbers of a shared
// machine mean little. Each is measured on elements that fit in a second-level cache and on elements that do not fit in
// any.
//
//   bytes_per_second   bytes read plus bytes written (memcpy: twice the size), so all rows compare with the memcpy row
//   items_per_second   elements
//
// Memory is touched before the clock starts.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "fsdp/base/check.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/random.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/float_kernels.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

constexpr int64_t kSmall = int64_t{1} << 16;
constexpr int64_t kLarge = int64_t{1} << 25;

// `numel` elements of `dtype` that are ordinary numbers.
Buffer OrdinaryElements(Device& device, DType dtype, int64_t numel) {
  absl::StatusOr<Buffer> buffer = device.Allocate(numel * SizeOf(dtype));
  Check(buffer.ok(), "out of memory");
  std::vector<float> tile(4096);
  FillUniform(Philox(1), 0, absl::MakeSpan(tile));
  for (int64_t i = 0; i < numel; i += 4096) {
    Check(Convert(DType::kFloat32, tile.data(), dtype, buffer->data() + i * SizeOf(dtype), 4096).ok(), "cannot fill");
  }
  return *std::move(buffer);
}

// Measures `kernel(source, destination)` on `numel` elements.
template <typename Kernel>
void Measure(benchmark::State& state, DType from, DType to, int64_t bytes_per_element, Kernel kernel) {
  const int64_t numel = state.range(0);
  auto device = CreateHostDevice();
  const Buffer source = OrdinaryElements(*device, from, numel);
  const Buffer destination = OrdinaryElements(*device, to, numel);
  for (auto _ : state) {
    kernel(source.data(), destination.data(), numel);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * numel);
  state.SetBytesProcessed(state.iterations() * numel * bytes_per_element);
}

void Memcpy(benchmark::State& state) {
  Measure(state, DType::kFloat32, DType::kFloat32, 8,
          [](const void* source, void* destination, int64_t n) { std::memcpy(destination, source, n * 4); });
}

void Memset(benchmark::State& state) {
  Measure(state, DType::kFloat32, DType::kFloat32, 4,
          [](const void*, void* destination, int64_t n) { std::memset(destination, 0, n * 4); });
}

void ConvertPair(benchmark::State& state, DType from, DType to) {
  Measure(state, from, to, SizeOf(from) + SizeOf(to), [=](const void* source, void* destination, int64_t n) {
    Check(Convert(from, source, to, destination, n).ok(), "cannot convert");
  });
}

void CastDivide(benchmark::State& state, DType from, DType to) {
  Measure(state, from, to, SizeOf(from) + SizeOf(to), [=](const void* source, void* destination, int64_t n) {
    CastDivideFloats({from, source}, {to, destination}, n, 3);
  });
}

void Accumulate(benchmark::State& state, DType from, DType to) {
  Measure(state, from, to, SizeOf(from) + 2 * SizeOf(to), [=](const void* source, void* destination, int64_t n) {
    AccumulateFloats({from, source}, {to, destination}, n);
  });
}

void SquaredNorm(benchmark::State& state, DType dtype) {
  Measure(state, dtype, dtype, SizeOf(dtype), [=](const void* source, void*, int64_t n) {
    benchmark::DoNotOptimize(SquaredNormOfFloats({dtype, source}, n));
  });
}

void CopyAndDigestBytes(benchmark::State& state) {
  Measure(state, DType::kFloat32, DType::kFloat32, 8, [](const void* source, void* destination, int64_t n) {
    DigestBuilder builder;
    CopyAndDigest(destination, source, static_cast<size_t>(n) * 4, builder);
    benchmark::DoNotOptimize(builder.Finish());
  });
}

void Normals(benchmark::State& state) {
  Measure(state, DType::kFloat32, DType::kFloat32, 4, [](const void*, void* destination, int64_t n) {
    FillNormal(Philox(1), 0, absl::MakeSpan(static_cast<float*>(destination), static_cast<size_t>(n)));
  });
}

void Register(const std::string& name, void (*function)(benchmark::State&)) {
  benchmark::RegisterBenchmark(name.c_str(), function)->Arg(kSmall)->Arg(kLarge);
}

std::string PairName(const std::string& name, DType from, DType to) {
  return name + "/" + std::string(DTypeName(from)) + "/" + std::string(DTypeName(to));
}

void RegisterAll() {
  Register("memcpy", Memcpy);
  Register("memset", Memset);
  const std::vector<std::pair<DType, DType>> pairs = {
      {DType::kFloat32, DType::kBFloat16},     {DType::kBFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kFloat16},      {DType::kFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kFloat8E4M3FN}, {DType::kFloat8E4M3FN, DType::kFloat32},
      {DType::kFloat32, DType::kFloat8E5M2},   {DType::kFloat8E5M2, DType::kFloat32},
      {DType::kBFloat16, DType::kFloat16},     {DType::kFloat64, DType::kFloat32},
      {DType::kFloat64, DType::kBFloat16},     {DType::kInt64, DType::kFloat32},
      {DType::kFloat32, DType::kInt32},        {DType::kInt64, DType::kInt32}};
  for (const auto& [from, to] : pairs) {
    benchmark::RegisterBenchmark(PairName("convert", from, to).c_str(), ConvertPair, from, to)
        ->Arg(kSmall)
        ->Arg(kLarge);
  }
  const std::vector<std::pair<DType, DType>> op_pairs = {{DType::kFloat32, DType::kFloat32},
                                                         {DType::kBFloat16, DType::kBFloat16},
                                                         {DType::kBFloat16, DType::kFloat32},
                                                         {DType::kFloat32, DType::kBFloat16}};
  for (const auto& [from, to] : op_pairs) {
    benchmark::RegisterBenchmark(PairName("cast_divide", from, to).c_str(), CastDivide, from, to)
        ->Arg(kSmall)
        ->Arg(kLarge);
    benchmark::RegisterBenchmark(PairName("accumulate", from, to).c_str(), Accumulate, from, to)
        ->Arg(kSmall)
        ->Arg(kLarge);
  }
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    benchmark::RegisterBenchmark(("squared_norm/" + std::string(DTypeName(dtype))).c_str(), SquaredNorm, dtype)
        ->Arg(kSmall)
        ->Arg(kLarge);
  }
  Register("copy_and_digest", CopyAndDigestBytes);
  Register("normals", Normals);
}

// Registration needs names made at run time, and benchmark_main does not allow that.
const bool registered = (RegisterAll(), true);

}  // namespace
}  // namespace fsdp
