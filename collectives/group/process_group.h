// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroup: a fixed set of ranks and the collectives among them. A collective is a piece of stream work: the call
// returns immediately, errors come out of Stream::Synchronize(), and order comes from streams and events.
//
//   group->AllGather(shard, unsharded, unshard_stream);   // unsharded: [size() * shard.numel()]
//   compute_stream.Wait(unshard_stream.Record());
//
// Every rank must issue the same collectives of one group in the same order, on any streams; the group runs them in
// that order. Ranks that disagree on operation, count or dtype get an error that names both sides. After its first
// error a group is broken: every later call fails immediately with that error.
//
// A group is used by one thread of its rank at a time. It must outlive the work that was put on streams.
//
// Backends: "local", "shm" and "net" (host/host_process_group.h), "nccl" and "local" on GPUs
// (cuda/cuda_process_group.h); how a program gets a group is in init_process_group.h and run_ranks.h.
#ifndef FSDP_COLLECTIVES_GROUP_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_PROCESS_GROUP_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/reduce_op.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // "local", "shm", "net", ...
  virtual std::string_view backend() const = 0;

  // The device whose memory the collectives take; shared by all groups of a rank.
  virtual const std::shared_ptr<Device>& device() const = 0;

  // Memory that peers reach directly. Collectives take any memory of device(), but this saves them a copy. Local;
  // counted in device()'s allocated bytes; already touched, so first use does not fault. kResourceExhausted as
  // Device::Allocate.
  virtual absl::StatusOr<Buffer> Allocate(int64_t nbytes) = 0;

  // output[r * n + i] = rank r's input[i], n = input.numel(); output has size() * n elements of the same dtype. In
  // place if `input` is output's own slice [rank() * n, (rank() + 1) * n); otherwise they must not overlap. Any dtype.
  virtual void AllGather(const Tensor& input, const Tensor& output, Stream& stream) = 0;

  // output[i] = op over ranks r = 0, 1, ... of rank r's input[rank() * n + i], n = output.numel(); input has size() * n
  // elements. Float dtypes and int32/int64. 16-bit floats are summed in float32 and rounded once. `output` may be
  // input's own slice. Summation is in the order of ranks, so results are equal bit for bit in every run.
  virtual void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) = 0;

  // t[i] = op over ranks of t[i]; same order and dtypes as ReduceScatter; every rank gets the same bits.
  virtual void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) = 0;

  // t becomes rank `root`'s t. Any dtype.
  virtual void Broadcast(const Tensor& t, int root, Stream& stream) = 0;

  // Later work on `stream` runs after all ranks have reached the barrier.
  virtual void Barrier(Stream& stream) = 0;

  // Control plane: every rank's `blob`, by rank; blocking, for small data (plans, digests, statuses).
  virtual absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) = 0;

  // AllGatherObject for data that hosts have before their streams catch up: a group on GPUs does not wait for the
  // collectives that were issued before, so it may be called in every step, and while a step is captured (it is then
  // not part of the graph). It is not compared with the calls of peers: an AllGatherObject of a peer would get this
  // blob, so blobs should identify their contents.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherObjectUnordered(std::string_view blob) {
    return AllGatherObject(blob);
  }

  // A group of the ranks that passed the same `color`, ordered by `key`, then by rank; every rank of this group must
  // call it. Blocking. Inherits device and timeout.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) = 0;

  // Reports to the peers that this rank gives up, with its reason: they fail with an error that names this rank instead
  // of waiting. Any thread.
  virtual void Abort(const absl::Status& reason) = 0;

  // How long a collective waits for its peers before it fails with kDeadlineExceeded and the missing ranks.
  virtual absl::Duration timeout() const = 0;
};

// Control-plane agreement: OK on every rank if every rank's `mine` is OK; else, on every rank, the error of the lowest
// rank that has one, prefixed "rank 2 of 4: " unless it already is. Blocking.
absl::Status AllReduceStatus(ProcessGroup& group, const absl::Status& mine);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_PROCESS_GROUP_H_
