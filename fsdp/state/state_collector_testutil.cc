// SPDX-License-Identifier: Apache-2.0
//
// Shards of replica 0 must cover each tensor exactly once (ExpectCovered). Shards of other replicas have equal
// elements, so it does not matter which replica is copied last.
#include "fsdp/fsdp/state/state_collector_testutil.h"

#include <cstring>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {

void StateCollector::Add(const StateDict& state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const int64_t itemsize = SizeOf(tensor->dtype);
    Whole& whole = wholes_[key.ToString()];
    whole.numel = tensor->shape.numel();
    whole.bytes.resize(whole.numel * itemsize);
    for (const ShardedTensor::Shard& shard : tensor->shards) {
      if (tensor->replica == 0) whole.held.push_back(shard.interval);
      std::memcpy(whole.bytes.data() + shard.interval.begin * itemsize, shard.data.data(), shard.data.nbytes());
    }
  }
}

void StateCollector::ExpectCovered() const {
  for (const auto& [name, whole] : wholes_) EXPECT_OK(CheckCover(whole.held, whole.numel)) << name;
}

std::string StateCollector::BytesOf(const StateKey& key) const {
  const auto found = wholes_.find(key.ToString());
  return found == wholes_.end() ? "" : found->second.bytes;
}

void ExpectSame(const StateCollector& a, const StateCollector& b) {
  ASSERT_EQ(a.wholes_.size(), b.wholes_.size());
  for (const auto& [name, whole] : a.wholes_) {
    ASSERT_EQ(b.wholes_.count(name), 1u) << name;
    EXPECT_TRUE(whole.bytes == b.wholes_.at(name).bytes) << name;
  }
}

}  // namespace fsdp
