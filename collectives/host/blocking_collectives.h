// SPDX-License-Identifier: Apache-2.0
//
// BlockingCollectives: the collectives of one rank of a group, one at a time, each blocking until it is done.
// HostProcessGroup puts them on streams. Each way of moving bytes between hosts' memories implements this interface:
// HostCollectives for ranks that read each other's memory, net/ for ranks that send messages.
//
// Run, AllGatherObject, Split and AwaitReaders are called by one thread at a time, in an order that all ranks share;
// the other functions by any thread.
#ifndef FSDP_COLLECTIVES_HOST_BLOCKING_COLLECTIVES_H_
#define FSDP_COLLECTIVES_HOST_BLOCKING_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

class BlockingCollectives {
 public:
  virtual ~BlockingCollectives() = default;

  virtual std::string_view backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::shared_ptr<Device>& device() const = 0;

  // The limit of each wait for the peers.
  virtual absl::Duration timeout() const = 0;

  // As ProcessGroup::Allocate.
  virtual absl::StatusOr<Buffer> Allocate(int64_t nbytes) = 0;

  // Runs the collective number `sequence` and blocks until this rank's output is ready and its input may be changed.
  // REQUIRES: the arguments passed CheckAllGather or the check of their operation. kFailedPrecondition if ranks
  // disagree, kUnavailable if a peer died or left, the code of a peer that gave up, kDeadlineExceeded; all name the
  // peer. After an error the group is unusable: the caller calls GiveUp, then AwaitReaders.
  virtual absl::Status Run(uint64_t sequence, const Collective& collective) = 0;

  // Every rank's blob, by rank; blobs may have any size. The same errors as Run.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherObject(uint64_t sequence, std::string_view blob) = 0;

  // The collectives of `members`, ranks of this group that include this one, in their new order. Every rank of this
  // group calls it at the same time, each with its own set, all sets disjoint; `gather` gathers over this group.
  virtual absl::StatusOr<std::unique_ptr<BlockingCollectives>> Split(const std::vector<int>& members,
                                                                     const BlobGather& gather) = 0;

  // Announces to all ranks that this one failed. Only the first call of a rank has an effect. Does not wait for peers.
  virtual void GiveUp(const absl::Status& reason) = 0;

  // Blocks until no peer, and no message under way, reads this rank's memory. Call it after GiveUp, before that memory
  // is freed.
  virtual void AwaitReaders() = 0;

  // Announces to all ranks that this one leaves without an error. Peers that wait for it later fail.
  virtual void Depart() = 0;

  // The first rank that gave up, as far as this rank knows; -1 while none has.
  virtual int first_rank_to_give_up() const = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_BLOCKING_COLLECTIVES_H_
