// SPDX-License-Identifier: Apache-2.0
//
// StateGather: from a unit's flat shards to whole parameters or dim-0 chunks, and back. One way for parameters and for
// every optimizer state, since these are sharded alike. Works unit by unit in one buffer, so that memory beyond the
// result is one unsharded unit in the original dtype.
#ifndef FSDP_FSDP_STATE_GATHER_H_
#define FSDP_FSDP_STATE_GATHER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/unit.h"
#include "tensor/sharded_tensor.h"
#include "tensor/state_dict.h"

namespace fsdp {

// In which form GetStateDict gives tensors.
struct GatherForm {
  StateDictType type = StateDictType::kFull;
  bool offload_to_cpu = false;
  bool rank0_only = false;  // kFull: other ranks get nothing
};

class StateGather {
 public:
  // `units` and `group` must outlive it.
  static absl::StatusOr<std::unique_ptr<StateGather>> Create(const UnitStore& units, ProcessGroup& group);

  // All-gathers `shard`, one rank's [shard_numel] part of unit `unit`, into the buffer. Collective.
  void Gather(int unit, const Tensor& shard);

  // A copy, in the given form, of parameter `index` of the unit gathered last; no shards where this rank gets nothing.
  absl::StatusOr<ShardedTensor> Extract(size_t index, const GatherForm& form);

  // Fills `destination`, this rank's slice of parameter `index` of unit `unit`, from `source`: a whole tensor on every
  // rank (kFull) or each rank's dim-0 chunk (kSharded). Collective.
  absl::Status Scatter(int unit, size_t index, const ShardedTensor& source, StateDictType type,
                       const Tensor& destination);

  // True when this rank is the one that gets a tensor at all under `form`.
  bool Receives(const GatherForm& form) const { return !form.rank0_only || group_.rank() == 0; }

  // Waits for everything issued.
  absl::Status Synchronize() { return stream_->Synchronize(); }

  Stream& stream() { return *stream_; }

 private:
  StateGather(const UnitStore& units, ProcessGroup& group) : units_(units), group_(group) {}

  absl::StatusOr<Tensor> CopyOf(const Tensor& source, bool to_host);

  const UnitStore& units_;
  ProcessGroup& group_;
  Buffer buffer_;    // of the largest unit
  Tensor gathered_;  // [padded_numel] of unit_, in buffer_
  int unit_ = -1;
  std::unique_ptr<Stream> stream_;  // last, so that it ends before the memory it uses goes
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_GATHER_H_
