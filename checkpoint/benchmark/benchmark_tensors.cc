// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/benchmark_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr int64_t kColumns = 16;
constexpr int64_t kRowBytes = kColumns * 4;
constexpr int64_t kPage = 4096;

}  // namespace

// Sizes grow linearly, so that ranks get unequal work. Values repeat after 1021, a prime: neighbouring blocks differ.
// Every page is written, so that the first save does not pay for page faults.
BenchmarkTensors::BenchmarkTensors(int count, int64_t nbytes) {
  for (int i = 0; i < count; ++i) {
    const int64_t rows = std::max<int64_t>(1, nbytes / kRowBytes / count * 2 * (i + 1) / (count + 1));
    entries_.push_back({absl::StrCat("layer.", i, ".weight"), Shape({rows, kColumns}), nbytes_});
    nbytes_ += rows * kRowBytes;
  }
  saved_ = NewAlignedBlock(nbytes_ + kPage);
  loaded_ = NewAlignedBlock(nbytes_ + kPage);
  auto* const values = reinterpret_cast<float*>(saved_.get());
  for (int64_t i = 0; i < nbytes_ / 4; ++i) values[i] = static_cast<float>(i % 1021) - 510.0f;
  std::memset(loaded_.get(), 0, nbytes_ + kPage);
}

StateDict BenchmarkTensors::StateOf(StateDictType type, int world_size, int rank, absl::Span<std::byte> memory) const {
  StateDict state;
  state.type = type;
  // LOCAL: all tensors are one unit, as FSDP would lay them out without padding.
  FlatUnitLayout unit;
  unit.unsharded_numel = nbytes_ / 4;
  const Interval flat = ChunkOf(unit.unsharded_numel, world_size, rank);
  for (const Entry& entry : entries_) {
    const int64_t numel = entry.shape.numel();
    const int64_t begin = entry.offset / 4;
    unit.parameters.push_back({entry.name, begin, numel});
    ShardedTensor tensor;
    tensor.shape = entry.shape;
    const Interval held = type == StateDictType::kLocal ? Intersect({flat.begin - begin, flat.end - begin}, {0, numel})
                                                        : Dim0Chunk(entry.shape, world_size, rank);
    if (!held.empty()) {
      const Buffer buffer = Buffer::Unowned(memory.data() + entry.offset + held.begin * 4, held.size() * 4);
      tensor.shards.push_back({held, Tensor(buffer, DType::kFloat32, {held.size()})});
    }
    state.Set(StateKey::Model(entry.name), std::move(tensor));
  }
  if (type == StateDictType::kLocal) state.units.push_back(std::move(unit));
  return state;
}

}  // namespace fsdp
