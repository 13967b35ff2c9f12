// SPDX-License-Identifier: Apache-2.0
//
// A collective of fake_nccl: the arguments of its ranks, and the result of each.
#ifndef FSDP_COLLECTIVES_CUDA_FAKE_NCCL_ROUND_H_
#define FSDP_COLLECTIVES_CUDA_FAKE_NCCL_ROUND_H_

#include <nccl.h>

#include <cstddef>
#include <map>
#include <vector>

#include "fsdp/collectives/cuda/fake_nccl_windows.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp::fake_nccl {

enum class Op { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// A collective that a rank launched.
struct Task {
  Op op = Op::kAllGather;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t reduction = ncclSum;
  double factor = 1;  // of a pre-multiplied sum
  int root = 0;
  Place send_place = {};  // what of the places in windows must be equal on all ranks
  Place receive_place = {};

  bool Matches(const Task& other) const {
    return op == other.op && count == other.count && type == other.type && reduction == other.reduction &&
           root == other.root && send_place == other.send_place && receive_place == other.receive_place;
  }

  // Sets the places. All ranks must agree on whether memory is in a window, and on the offset of memory that peers read
  // or write: what an all-gather receives, what a reduce-scatter sends, and both of an all-reduce.
  void FindPlaces(const Windows& windows, int rank);

  // True if peers read or write this rank's memory directly.
  bool is_symmetric() const {
    return op == Op::kAllGather ? receive_place.is_in_window() : reduction == ncclSum && send_place.is_in_window();
  }
};

// The collective of one number, with the arguments of the ranks that have reached it.
struct Round {
  std::map<int, Task> tasks;
  int computed = 0;
};

DType DTypeOf(ncclDataType_t type);

// The bytes that `rank` receives, from the memory of all ranks on the emulated GPU. REQUIRES: all ranks have come, and
// match.
std::vector<std::byte> Result(const Round& round, int rank);

}  // namespace fsdp::fake_nccl

#endif  // FSDP_COLLECTIVES_CUDA_FAKE_NCCL_ROUND_H_
