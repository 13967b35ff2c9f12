// SPDX-License-Identifier: Apache-2.0
//
// Measures the plans that a rank makes before it moves a byte, for 10,000 tensors and 1,024 and 16,384 ranks: their
// time, and their peak memory in addition to their inputs ("peak_MiB"). Plans do not communicate: no function here
// takes a process group.
//
//   bazel run -c opt //checkpoint/benchmark:planning_benchmark
//
// SaveSharded, SaveLocal: PlanSave of one rank's parts of 10,000 tensors, and their places in flat datasets for LOCAL.
// Load: PlanReads of one rank, of as many ranks as saved, from their open manifest. Reshard: the same with three
// quarters as many ranks. The manifest of 16,384 ranks is 164 million intervals, which take 5.3 GB.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/native/read/read_plan.h"
#include "fsdp/checkpoint/native/save/save_plan.h"
#include "fsdp/checkpoint/native/tree/flat_parts.h"

namespace {

// Counts the memory from operator new in this program: the current amount, and the peak since the last Reset.
class HeapCount {
 public:
  void Add(int64_t nbytes) {
    const int64_t now = now_.fetch_add(nbytes) + nbytes;
    if (now > peak_.load()) peak_.store(now);
  }
  void Reset() {
    start_ = now_.load();
    peak_.store(start_);
  }
  int64_t peak_since_reset() const { return peak_.load() - start_; }

 private:
  std::atomic<int64_t> now_{0}, peak_{0};
  int64_t start_ = 0;
};
HeapCount heap;

}  // namespace

void* operator new(size_t nbytes) {
  void* const memory = std::malloc(nbytes);
  if (memory == nullptr) std::abort();
  heap.Add(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

void operator delete(void* memory) noexcept {
  heap.Add(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace fsdp {
namespace {

constexpr int kTensors = 10000;
constexpr int kUnit = 16;          // tensors per unit of LOCAL
const Shape kShape = {16384, 16};  // each rank has at least one row of each, up to 16,384 ranks
constexpr double kMebibyte = 1 << 20;

std::string NameOf(int i) { return absl::StrCat("transformer.h.", i / 16, ".mlp.experts.", i % 16, ".weight"); }

// The part of tensor `i` in a rank's shard of the tensor's flat unit.
Interval FlatPart(int i, int ranks, int rank) {
  const Interval shard = ChunkOf(kUnit * kShape.numel(), ranks, rank);
  const int64_t offset = (i % kUnit) * kShape.numel();
  return Intersect({shard.begin - offset, shard.end - offset}, {0, kShape.numel()});
}

StateDict StateOfRank(StateDictType type, int ranks, int rank, std::vector<float>& memory) {
  StateDict state;
  state.type = type;
  memory.resize(kShape.numel());
  for (int i = 0; i < kTensors; ++i) {
    ShardedTensor tensor;
    tensor.shape = kShape;
    Interval held = Dim0Chunk(kShape, ranks, rank);
    if (type == StateDictType::kLocal) {
      if (i % kUnit == 0)
        state.units.push_back({absl::StrCat("transformer.h.", i / kUnit), {}, kUnit * kShape.numel()});
      state.units.back().parameters.push_back({NameOf(i), (i % kUnit) * kShape.numel(), kShape.numel()});
      held = FlatPart(i, ranks, rank);
    }
    if (!held.empty()) {
      const Buffer buffer = Buffer::Unowned(memory.data(), held.size() * 4);
      tensor.shards.push_back({held, Tensor(buffer, DType::kFloat32, {held.size()})});
    }
    state.Set(StateKey::Model(NameOf(i)), std::move(tensor));
  }
  return state;
}

void ReportPeak(benchmark::State& benchmark) {
  benchmark.counters["peak_MiB"] = static_cast<double>(heap.peak_since_reset()) / kMebibyte;
}

// A rank in the middle: it has a part of every tensor, or for LOCAL a slice of one tensor of each unit.
void PlanSaveOf(benchmark::State& benchmark, StateDictType type) {
  const int ranks = static_cast<int>(benchmark.range(0));
  std::vector<float> memory;
  const StateDict state = StateOfRank(type, ranks, ranks / 2 - 12, memory);
  heap.Reset();
  for (auto _ : benchmark) {
    const absl::StatusOr<SavePlan> plan = PlanSave(state);
    Check(plan.ok(), "no plan");
    TreeFile tree;
    tree.tensors = plan->tensors;
    if (type == StateDictType::kLocal) Check(AddFlatParts(state.units, tree).ok(), "no flat parts");
    benchmark::DoNotOptimize(tree);
  }
  ReportPeak(benchmark);
}

void SaveSharded(benchmark::State& benchmark) { PlanSaveOf(benchmark, StateDictType::kSharded); }
void SaveLocal(benchmark::State& benchmark) { PlanSaveOf(benchmark, StateDictType::kLocal); }

// The manifest of a SHARDED save and its index, as in an open checkpoint.
struct Stored {
  Manifest manifest;
  TensorIndex index;
};

// Has every interval of every tensor, but extents only for files that hold `wanted` rows, since a plan uses no others.
Stored StoredBy(int ranks, const Interval& wanted) {
  Stored stored;
  stored.manifest.files.resize(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const Interval held = Dim0Chunk(kShape, ranks, rank);
    if (Intersect(held, wanted).empty()) continue;
    const int64_t nbytes = held.size() * 4;
    StoredFile& file = stored.manifest.files[rank];
    for (int i = 0; i < kTensors; ++i) file.extents.push_back({{i * nbytes, nbytes}, std::vector<Digest>(1)});
  }
  for (int i = 0; i < kTensors; ++i) {
    StoredTensor& tensor = stored.manifest.tensors.emplace_back();
    tensor.key = StateKey::Model(NameOf(i));
    tensor.shape = kShape;
    tensor.intervals.reserve(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Interval held = Dim0Chunk(kShape, ranks, rank);
      tensor.intervals.push_back({held, rank, i * held.size() * 4});
    }
    stored.index[tensor.key] = i;
  }
  return stored;
}

void PlanLoadOf(benchmark::State& benchmark, int stored_by, int loaded_by) {
  const Interval wanted = Dim0Chunk(kShape, loaded_by, loaded_by / 2 - 12);
  const Stored stored = StoredBy(stored_by, wanted);
  std::vector<TensorRead> reads;
  std::vector<std::byte> memory(kShape.numel() * 4);
  for (const StoredTensor& tensor : stored.manifest.tensors) {
    reads.push_back({tensor.key, wanted, DType::kFloat32, memory.data()});
  }
  heap.Reset();
  for (auto _ : benchmark) {
    const auto blocks = PlanReads(stored.manifest, stored.index, reads);
    Check(blocks.ok(), "no plan");
    benchmark::DoNotOptimize(blocks);
  }
  ReportPeak(benchmark);
}

void Load(benchmark::State& benchmark) {
  PlanLoadOf(benchmark, static_cast<int>(benchmark.range(0)), static_cast<int>(benchmark.range(0)));
}
void Reshard(benchmark::State& benchmark) {
  PlanLoadOf(benchmark, static_cast<int>(benchmark.range(0)), static_cast<int>(benchmark.range(0)) * 3 / 4);
}

BENCHMARK(SaveSharded)->Unit(benchmark::kMillisecond)->Arg(1024)->Arg(16384);
BENCHMARK(SaveLocal)->Unit(benchmark::kMillisecond)->Arg(1024)->Arg(16384);
BENCHMARK(Load)->Unit(benchmark::kMillisecond)->Arg(1024)->Arg(16384)->Iterations(20);
BENCHMARK(Reshard)->Unit(benchmark::kMillisecond)->Arg(1024)->Arg(16384)->Iterations(20);

}  // namespace
}  // namespace fsdp
