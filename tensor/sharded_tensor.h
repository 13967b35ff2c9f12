// SPDX-License-Identifier: Apache-2.0
//
// ShardedTensor: the part of one whole tensor that this rank holds, as intervals with their elements. A rank that holds
// nothing has no shards; a rank that holds everything has one, [0, numel). A value; copies share the shards' bytes. It
// does not record which ranks hold the rest: comparing all ranks' intervals shows that.
#ifndef FSDP_TENSOR_SHARDED_TENSOR_H_
#define FSDP_TENSOR_SHARDED_TENSOR_H_

#include <vector>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct ShardedTensor {
  // A contiguous run of elements, and its place in the whole tensor.
  struct Shard {
    Interval interval;  // in row-major elements of the whole tensor
    Tensor data;        // 1-D, interval.size() elements of `dtype`, on any device
  };

  // Known on every rank, also on one that holds no shard.
  DType dtype = DType::kFloat32;
  Shape shape;                // of the whole tensor
  std::vector<Shard> shards;  // this rank's; sorted, disjoint, none empty

  // Which copy of its elements this rank holds, if several ranks hold the same (no_shard, hybrid). Copy 0 is saved.
  int replica = 0;

  // All of `whole`, as one shard, or no shard if it is empty. The shard is a view of the same memory: nothing is
  // copied. `replica` is 0.
  static ShardedTensor Whole(const Tensor& whole) {
    ShardedTensor sharded;
    sharded.dtype = whole.dtype();
    sharded.shape = whole.shape();
    const Interval all = {0, whole.numel()};
    if (!all.empty()) sharded.shards.push_back({all, whole.Slice(all)});
    return sharded;
  }
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_SHARDED_TENSOR_H_
