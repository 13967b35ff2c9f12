// SPDX-License-Identifier: Apache-2.0
//
// The plans that a rank makes before it moves a byte, at 10,000 tensors and 1,024 ranks. Neither plan communicates: no
// function here takes a process group.
//
//   bazel run -c opt //checkpoint/benchmark:planning_benchmark
//
// save: PlanSave of one rank's 10,000 chunks, and their places in flat datasets for LOCAL. load: PlanReads of one of
// 768 ranks in a manifest of 1,024 ranks, which is 10 million intervals, open already.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/save/save_plan.h"
#include "fsdp/checkpoint/source/read_plan.h"
#include "fsdp/checkpoint/tree/flat_parts.h"

namespace fsdp {
namespace {

constexpr int kTensors = 10000;
constexpr int kRanks = 1024;
const Shape kShape = {4096, 64};

std::string NameOf(int i) { return absl::StrCat("transformer.h.", i / 16, ".mlp.experts.", i % 16, ".weight"); }

StateDict StateOfRank(StateDictType type, int rank, std::vector<float>& memory) {
  StateDict state;
  state.type = type;
  memory.resize(kShape.numel());
  for (int i = 0; i < kTensors; ++i) {
    ShardedTensor tensor;
    tensor.shape = kShape;
    Interval held = Dim0Chunk(kShape, kRanks, rank);
    if (type == StateDictType::kLocal) {
      // Units of 16 tensors; a rank's shard is a 1024th of them, within one tensor.
      if (i % 16 == 0) state.units.push_back({absl::StrCat("transformer.h.", i / 16), {}, 16 * kShape.numel()});
      state.units.back().parameters.push_back({NameOf(i), (i % 16) * kShape.numel(), kShape.numel()});
      const Interval shard = ChunkOf(16 * kShape.numel(), kRanks, rank);
      const int64_t offset = (i % 16) * kShape.numel();
      held = Intersect({shard.begin - offset, shard.end - offset}, {0, kShape.numel()});
    }
    if (!held.empty()) {
      const Buffer buffer = Buffer::Unowned(memory.data(), held.size() * 4);
      tensor.shards.push_back({held, Tensor(buffer, DType::kFloat32, {held.size()})});
    }
    state.Set(StateKey::Model(NameOf(i)), std::move(tensor));
  }
  return state;
}

// A rank in the middle: it has a part of every tensor, or for LOCAL a slice of one tensor of each unit.
void PlanSaveOf(benchmark::State& benchmark, StateDictType type) {
  std::vector<float> memory;
  const StateDict state = StateOfRank(type, 500, memory);
  for (auto _ : benchmark) {
    const absl::StatusOr<SavePlan> plan = PlanSave(state);
    Check(plan.ok(), "no plan");
    TreeFile tree;
    tree.tensors = plan->tensors;
    if (type == StateDictType::kLocal) Check(AddFlatParts(state.units, tree).ok(), "no flat parts");
    benchmark::DoNotOptimize(tree);
  }
}

void SaveSharded(benchmark::State& benchmark) { PlanSaveOf(benchmark, StateDictType::kSharded); }
void SaveLocal(benchmark::State& benchmark) { PlanSaveOf(benchmark, StateDictType::kLocal); }

// The manifest and its index are made once, as an open checkpoint has them; only the plan is timed.
void LoadSharded(benchmark::State& benchmark) {
  Manifest manifest;
  TensorIndex index;
  for (int rank = 0; rank < kRanks; ++rank) {
    StoredFile& file = manifest.files.emplace_back();
    const int64_t nbytes = Dim0Chunk(kShape, kRanks, rank).size() * 4;
    for (int i = 0; i < kTensors; ++i) file.extents.push_back({{i * nbytes, nbytes}, std::vector<Digest>(1)});
  }
  for (int i = 0; i < kTensors; ++i) {
    StoredTensor& tensor = manifest.tensors.emplace_back();
    tensor.key = StateKey::Model(NameOf(i));
    tensor.shape = kShape;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Interval held = Dim0Chunk(kShape, kRanks, rank);
      tensor.intervals.push_back({held, rank, i * held.size() * 4});
    }
    index[tensor.key] = i;
  }
  std::vector<TensorRead> reads;
  std::vector<std::byte> memory(kShape.numel() * 4);
  for (int i = 0; i < kTensors; ++i) {
    reads.push_back({manifest.tensors[i].key, Dim0Chunk(kShape, 768, 500), DType::kFloat32, memory.data()});
  }
  for (auto _ : benchmark) {
    const auto blocks = PlanReads(manifest, index, reads);
    Check(blocks.ok(), "no plan");
    benchmark::DoNotOptimize(blocks);
  }
}

BENCHMARK(SaveSharded)->Unit(benchmark::kMillisecond);
BENCHMARK(SaveLocal)->Unit(benchmark::kMillisecond);
BENCHMARK(LoadSharded)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fsdp
