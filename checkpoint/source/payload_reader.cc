// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/payload_reader.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

absl::Status CopyElements(const StateDict& state, const StateKey& key, const Interval& interval, std::byte* out) {
  const ShardedTensor* tensor = state.FindTensor(key);
  if (tensor == nullptr) return absl::NotFoundError(absl::StrCat("the state dict holds no ", Describe(key)));
  const int64_t size = SizeOf(tensor->dtype);
  int64_t next = interval.begin;  // all elements before it are copied: shards are sorted and disjoint
  for (const ShardedTensor::Shard& shard : tensor->shards) {
    const Interval part = Intersect(shard.interval, {next, interval.end});
    // A shard that ends before `next` or begins after the interval: the next one may still overlap.
    if (part.empty()) continue;
    if (part.begin != next) break;
    std::memcpy(out + (part.begin - interval.begin) * size,
                shard.data.data_as<std::byte>() + (part.begin - shard.interval.begin) * size, part.size() * size);
    next = part.end;
  }
  if (next == interval.end) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(Describe(key), ": this process does not hold element ", next));
}

}  // namespace

PayloadReader ReadFromMemory(const StateDict& state) {
  return [&state](const StateKey& key, const Interval& interval, void* out) {
    return CopyElements(state, key, interval, static_cast<std::byte*>(out));
  };
}

}  // namespace fsdp
