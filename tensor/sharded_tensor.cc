// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/sharded_tensor.h"

namespace fsdp {

ShardedTensor ShardedTensor::Whole(const Tensor& whole) {
  ShardedTensor sharded;
  sharded.dtype = whole.dtype();
  sharded.shape = whole.shape();
  const Interval all = {0, whole.numel()};
  if (!all.empty()) sharded.shards.push_back({all, whole.Slice(all)});
  return sharded;
}

}  // namespace fsdp
