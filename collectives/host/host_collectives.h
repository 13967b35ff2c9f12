// SPDX-License-Identifier: Apache-2.0
//
// HostCollectives: the BlockingCollectives of ranks that can read each other's memory, over any fabric. The .cc file
// begins with the protocol and the bytes that each collective moves.
#ifndef FSDP_COLLECTIVES_HOST_HOST_COLLECTIVES_H_
#define FSDP_COLLECTIVES_HOST_HOST_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/host/blocking_collectives.h"
#include "fsdp/collectives/host/fabric.h"
#include "fsdp/collectives/host/round_barrier.h"

namespace fsdp {

// A part of a reduce_scatter over the ranks of several hosts: this host's rows of elements [begin, begin + count) of
// each slice. Each host in order adds to the sum of the host before, see Reduction.
struct HostSum {
  int64_t begin = 0;
  int64_t count = 0;
  const std::byte* sum_before = nullptr;  // [count] sums of the hosts before; null on the first
  std::byte* destination = nullptr;       // [count] sums, or elements on the last host
  bool is_continued = false;              // this host is not the last
  int64_t ranks_in_all = 0;
  absl::Span<const std::byte* const> rows_after = {};  // [count] each: of ranks of later hosts, added last
};

class HostCollectives final : public BlockingCollectives {
 public:
  // `timeout`: for each round of a collective, see RoundBarrier. `names`: for errors, if the fabric is only a part of
  // the group that the program sees. `watch`: asked by every wait, here and in parts of this group.
  HostCollectives(std::unique_ptr<Fabric> fabric, absl::Duration timeout, RankNames names = {},
                  PeerWatch watch = nullptr);

  std::string_view backend() const override { return fabric_->backend(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::shared_ptr<Device>& device() const override { return fabric_->device(); }
  absl::Duration timeout() const override { return barrier_.timeout(); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return fabric_->Allocate(nbytes); }

  absl::Status Run(uint64_t sequence, const Collective& collective) override;
  absl::StatusOr<std::vector<std::string>> AllGatherObject(uint64_t sequence, std::string_view blob) override;
  absl::StatusOr<std::unique_ptr<BlockingCollectives>> Split(const std::vector<int>& members,
                                                             const BlobGather& gather) override;

  // Run for elements [begin, begin + count) of each rank's shard of an all_gather, whose input is in place.
  absl::Status RunPart(uint64_t sequence, const Collective& collective, int64_t begin, int64_t count);

  // Run for a part of the reduce_scatter `collective`, whose output it ignores. Only ranks of this host take part, with
  // equal `begin` and `count`.
  absl::Status RunHostSum(uint64_t sequence, const Collective& collective, const HostSum& sum);

  // One round without the protocol of Run, for callers that have their own. After ShareSlots, the bytes that each rank
  // wrote into the slot_bytes() bytes of OwnSlot can be read by the others in SlotOf(its rank), until the next call of
  // any function here. All ranks take part. `grace` is added to the timeout, but errors do not mention it.
  std::byte* OwnSlot() { return fabric_->Slot(rank_, barrier_.write_parity()); }
  const std::byte* SlotOf(int r) const { return fabric_->Slot(r, barrier_.read_parity()); }
  int64_t slot_bytes() const { return fabric_->slot_bytes(); }
  absl::Status ShareSlots(const CollectiveId& what, absl::Duration grace) { return barrier_.Await(what, grace); }

  // Split for collectives whose errors use the names of `members` in a larger group.
  absl::StatusOr<std::unique_ptr<HostCollectives>> SplitHost(const std::vector<int>& members, const BlobGather& gather,
                                                             RankNames names);

  void GiveUp(const absl::Status& reason) override { barrier_.GiveUp(reason); }
  void AwaitReaders() override { barrier_.AwaitReaders(); }
  void Depart() override { barrier_.Depart(); }
  int first_rank_to_give_up() const override;

 private:
  // Elements [begin, begin + count) of each rank's contribution.
  struct Chunk {
    int64_t begin = 0;
    int64_t count = 0;
  };

  // The steps of the protocol, in the order in which Run takes them. Describe publishes this rank's memory, Exchange
  // meets the others and reads their descriptors, CheckRanksAgree compares the specs, Meet is a further round. RunRange
  // takes all of them, for elements [begin, end) of spec.count.
  absl::Status RunRange(const Collective& collective, int64_t begin, int64_t end);
  Descriptor Describe(const Collective& collective) const;
  absl::Status Exchange(const Descriptor& mine, const std::byte* own);
  absl::Status CheckRanksAgree();
  absl::Status Meet();

  // The data of a chunk are in slots, or `direct_offset` bytes into a rank's own memory. SlotCapacity is in elements
  // per row, and a chunk never has more. Stage copies a chunk into this rank's slot.
  int64_t SlotCapacity(const CollectiveSpec& spec) const;
  void Stage(const Collective& collective, const Chunk& chunk) const;
  // The part of a chunk that rank `r` reduces in an all_reduce; it begins on a cache line.
  Chunk SubSlice(const CollectiveSpec& spec, const Chunk& chunk, int r) const;
  const std::byte* Source(int r, int64_t direct_offset, int64_t slot_offset) const;

  // The data movement of each operation, from the peers' memory or slots to the output. Move calls the function of the
  // operation. All copy or reduce on the calling thread.
  absl::Status Move(const Collective& collective, const Chunk& chunk);
  void AllGatherChunk(const Collective& collective, const Chunk& chunk) const;
  void BroadcastChunk(const Collective& collective, const Chunk& chunk) const;
  void ReduceScatterChunk(const Collective& collective, const Chunk& chunk);
  absl::Status AllReduceChunk(const Collective& collective, const Chunk& chunk);
  // A small all_reduce: every rank reduces everything, in the order of ranks, so no second round is needed.
  void ReduceAlike(const Collective& collective, const Chunk& chunk);

  // The peers' memory, and the control block that all ranks of the group share.
  const std::unique_ptr<Fabric> fabric_;
  const ControlBlock control_;
  const int rank_;
  const int size_;
  RoundBarrier barrier_;

  // State of the collective that runs.
  CollectiveId id_;
  const HostSum* host_sum_ = nullptr;      // of RunHostSum; else null
  std::vector<CollectiveSpec> specs_;      // by rank
  std::vector<const std::byte*> sources_;  // by rank: its data; null if they go through its slots
  bool staged_ = false;                    // this rank's data go through its slots
  bool any_direct_ = false;                // some rank's own memory is read, so all must wait before it may change
  bool any_staged_ = false;                // some rank uses slots, so all move chunks that fit into them
  std::vector<const std::byte*> rows_;     // scratch of the reductions
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_HOST_COLLECTIVES_H_
