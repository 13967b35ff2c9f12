// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/state_testutil.h"

#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr char kParamGroups[] = R"([{"lr": 0.001, "params": ["wte.weight", "h.0.bias"]}])";
constexpr char kSchedule[] = "cosine \xE2\x82\xAC";  // UTF-8 beyond ASCII

Tensor NewTensor(DType dtype, int64_t numel) {
  const int64_t nbytes = numel * SizeOf(dtype);
  // 64 bytes beyond the tensor, so that a read past its end meets 0xA5 and not the next allocation.
  auto bytes = std::make_shared<std::vector<std::byte>>(nbytes + 64, std::byte{0xA5});
  return Tensor(Buffer(bytes->data(), nbytes, [bytes] {}), dtype, {numel});
}

// Dim-0 chunks as in FSDP2. Without `fill` the memory keeps its 0xA5 and texts have other values, so that CheckState
// fails unless a load fills everything.
StateDict Sharded(const std::vector<TestTensor>& tensors, int world_size, int rank, bool fill) {
  StateDict state;
  state.type = StateDictType::kSharded;
  for (const TestTensor& tensor : tensors) {
    ShardedTensor sharded;
    sharded.dtype = tensor.dtype;
    sharded.shape = tensor.shape;
    const Interval chunk = Dim0Chunk(tensor.shape, world_size, rank);
    if (!chunk.empty()) {
      sharded.shards.push_back({chunk, fill ? MakeElements(tensor, chunk) : NewTensor(tensor.dtype, chunk.size())});
    }
    state.Set(tensor.key, std::move(sharded));
  }
  state.Set(StateKey::ParamGroups(), std::string(fill ? kParamGroups : ""));
  state.Set(StateKey::Extra("schedule"), std::string(fill ? kSchedule : ""));
  state.Set(StateKey::Extra("nothing"), std::string(fill ? "" : "x"));
  state.aliases["lm_head.weight"] = "wte.weight";
  state.units.push_back({"h.0", {{"h.0.bias", 0, 7}}, 7});
  return state;
}

}  // namespace

// Made as int8 and then converted, so that a tensor that a test loads in another dtype has known elements, too.
Tensor MakeElements(const TestTensor& tensor, const Interval& interval) {
  const Tensor made = NewTensor(tensor.dtype, interval.size());
  const auto seed = static_cast<int64_t>(DigestOf(std::string_view(tensor.key.ToString())).low % 97);
  std::vector<int8_t> values(interval.size());
  // Values 1 to 8 with a period that no block or row divides: an element at a wrong offset differs with near certainty.
  for (int64_t i = 0; i < interval.size(); ++i) {
    const int64_t element = interval.begin + i;
    const int64_t value = (element * 7 + element / 251 + seed) % 8 + 1;
    values[i] = static_cast<int8_t>(tensor.dtype == DType::kBool ? value % 2 : value);
  }
  const absl::Status converted =
      Convert(tensor.dtype == DType::kBool ? DType::kBool : DType::kInt8, values.data(),
              IsPacked(tensor.dtype) ? DType::kUInt8 : tensor.dtype, made.data(), interval.size());
  Check(converted.ok(), "a small integer does not convert");
  return made;
}

std::vector<TestTensor> AwkwardTensors() {
  std::vector<TestTensor> tensors = {
      {StateKey::Model("wte.weight"), DType::kFloat32, {257, 48}},
      {StateKey::Model("h.0.bias"), DType::kFloat32, {7}},
      {StateKey::Model("scale"), DType::kFloat64, {}},
      {StateKey::Model("two.rows"), DType::kInt16, {2, 3, 5}},
      {StateKey::Model("empty"), DType::kFloat32, {0, 4}},
      {StateKey::Model("empty.inside"), DType::kInt64, {3, 0, 2}},
      {StateKey::Model("large"), DType::kUInt8, {4099, 2053}},  // more than two blocks, cut off row boundaries
      {StateKey::Model("100%/of.\xC3\xA4"), DType::kFloat32, {5, 2}},
      {StateKey::Model("."), DType::kInt32, {3}},
      {StateKey::Model(".."), DType::kInt32, {2}},
      {StateKey::OptimState("wte.weight", "exp_avg"), DType::kFloat32, {257, 48}},
      {StateKey::OptimState("wte.weight", "step"), DType::kFloat32, {}},
      {StateKey::OptimState("a/b", "exp/avg"), DType::kFloat32, {9}},
      {StateKey::Extra("rng"), DType::kUInt8, {11}},
  };
  for (const DType dtype : AllDTypes()) {
    tensors.push_back({StateKey::Model(absl::StrCat("dtype.", std::string(DTypeName(dtype)))), dtype, {13, 3}});
  }
  return tensors;
}

StateDict ShardedState(const std::vector<TestTensor>& tensors, int world_size, int rank) {
  return Sharded(tensors, world_size, rank, true);
}

StateDict FullState(const std::vector<TestTensor>& tensors) {
  StateDict state = Sharded(tensors, 1, 0, true);
  state.type = StateDictType::kFull;
  return state;
}

std::vector<FlatUnitLayout> FlatUnits() {
  // Numel of the units is not a multiple of every world size, and offsets leave gaps, as alignment does.
  return {{"", {{"wte.weight", 0, 257 * 48}, {"100%/of.\xC3\xA4", 12340, 10}}, 12352},
          {"h.0", {{"h.0.bias", 0, 7}}, 7},
          {"h.1", {{"dtype.uint8", 1, 39}, {"large", 64, 4099 * 2053}}, 64 + 4099 * 2053},
          {"scalar", {{"scale", 0, 1}}, 1}};
}

StateDict LocalState(const std::vector<TestTensor>& tensors, int world_size, int rank,
                     const std::vector<FlatUnitLayout>& units) {
  StateDict state = Sharded(tensors, world_size, rank, true);
  state.type = StateDictType::kLocal;
  state.units = units;
  for (const TestTensor& tensor : tensors) {
    for (const FlatUnitLayout& unit : state.units) {
      for (const FlatUnitLayout::Entry& entry : unit.parameters) {
        // Scalars of the optimizer, such as "step", are not sharded in a flat state.
        const bool is_flat = tensor.key.section == StateKey::Section::kModel || tensor.shape.rank() > 0;
        if (entry.fqn != tensor.key.fqn || !is_flat) continue;
        // The part of the parameter in this rank's shard, in elements of the parameter; empty if it begins after the
        // shard or ends before it.
        const Interval shard = ChunkOf(unit.unsharded_numel, world_size, rank);
        const Interval held =
            Intersect({shard.begin - entry.offset, shard.end - entry.offset}, {0, tensor.shape.numel()});
        ShardedTensor flat;
        flat.dtype = tensor.dtype;
        flat.shape = tensor.shape;
        if (!held.empty()) {
          // A slice of a longer run of memory, as a flat shard is.
          const Tensor memory = NewTensor(tensor.dtype, held.size() + 2);
          const Tensor slice = memory.Slice({1, 1 + held.size()});
          const Tensor elements = MakeElements(tensor, held);
          std::memcpy(slice.data(), elements.data(), elements.nbytes());
          flat.shards.push_back({held, slice});
        }
        state.Set(tensor.key, std::move(flat));
      }
    }
  }
  return state;
}

StateDict StateOf(StateDictType type, const std::vector<TestTensor>& tensors, int world_size, int rank) {
  switch (type) {
    case StateDictType::kFull:
      return FullState(tensors);
    case StateDictType::kLocal:
      return LocalState(tensors, world_size, rank);
    case StateDictType::kSharded:
      return ShardedState(tensors, world_size, rank);
  }
  CheckFailed("not a StateDictType", __FILE__, __LINE__);
}

StateDict WantedState(const std::vector<TestTensor>& tensors, int world_size, int rank) {
  return Sharded(tensors, world_size, rank, false);
}

// Compares in the dtype that `state` holds, so that it also checks loads which convert.
absl::Status CheckState(const std::vector<TestTensor>& tensors, const StateDict& state) {
  for (const TestTensor& tensor : tensors) {
    const ShardedTensor* held = state.FindTensor(tensor.key);
    if (held == nullptr) return absl::NotFoundError(tensor.key.ToString());
    for (const ShardedTensor::Shard& shard : held->shards) {
      const Tensor expected = MakeElements({tensor.key, held->dtype, tensor.shape}, shard.interval);
      if (std::memcmp(expected.data(), shard.data.data(), expected.nbytes()) != 0) {
        return absl::DataLossError(absl::StrCat(tensor.key.ToString(), " ", shard.interval.ToString(), " differs"));
      }
    }
  }
  const std::string* groups = state.FindText(StateKey::ParamGroups());
  const std::string* schedule = state.FindText(StateKey::Extra("schedule"));
  const std::string* nothing = state.FindText(StateKey::Extra("nothing"));
  if (groups == nullptr || *groups != kParamGroups || schedule == nullptr || *schedule != kSchedule ||
      nothing == nullptr || !nothing->empty()) {
    return absl::DataLossError("texts differ");
  }
  return absl::OkStatus();
}

std::string NewTestDirectory() {
  const char* parent = getenv("TEST_TMPDIR");
  std::string path = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/checkpoint-XXXXXX");
  Check(mkdtemp(path.data()) != nullptr, "no directory for a test");
  return path;
}

std::vector<std::string> ListNames(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
  Check(names.ok(), "a test lists a directory that is not there");
  return *names;
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace fsdp
