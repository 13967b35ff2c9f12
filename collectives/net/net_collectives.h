// SPDX-License-Identifier: Apache-2.0
//
// NetCollectives: the BlockingCollectives of ranks that send each other messages, as if every rank were on its own host
// ("flat"). The .cc file begins with the protocol and the bytes that each collective sends. layered_collectives.h uses
// the parts of this class to do better for several ranks on one host.
#ifndef FSDP_COLLECTIVES_NET_NET_COLLECTIVES_H_
#define FSDP_COLLECTIVES_NET_NET_COLLECTIVES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/host/blocking_collectives.h"
#include "fsdp/collectives/net/meeting.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

struct NetOptions {
  absl::Duration timeout = absl::Minutes(10);  // of each wait for the peers
  PeerWatch watch = nullptr;                   // null: only the transport reports errors
  std::string backend = "net";                 // its name, by the transport
};

class NetCollectives final : public BlockingCollectives {
 public:
  NetCollectives(std::unique_ptr<Transport> transport, std::shared_ptr<Device> device, NetOptions options);

  std::string_view backend() const override { return options_.backend; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::shared_ptr<Device>& device() const override { return device_; }
  absl::Duration timeout() const override { return options_.timeout; }
  const PeerWatch& watch() const { return options_.watch; }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override;

  absl::Status Run(uint64_t sequence, const Collective& collective) override;
  absl::StatusOr<std::vector<std::string>> AllGatherObject(uint64_t sequence, std::string_view blob) override;
  absl::StatusOr<std::unique_ptr<BlockingCollectives>> Split(const std::vector<int>& members,
                                                             const BlobGather& gather) override;

  void GiveUp(const absl::Status& reason) override;
  void AwaitReaders() override { transport_->AwaitSends(); }
  void Depart() override;
  int first_rank_to_give_up() const override { return transport_->first_rank_to_give_up(); }

  // The parts of Run and AllGatherObject. Meet blocks until all ranks have come to collective number `sequence`, and
  // fails unless they have equal specs; Move and MoveBlobs move the agreed data; Complete records that this rank has
  // done its part. Exchange is the transport's, for the collective of the last Meet.
  absl::Status Meet(uint64_t sequence, const CollectiveSpec& spec);
  absl::Status Move(const Collective& collective);
  absl::StatusOr<std::vector<std::string>> MoveBlobs(std::string_view blob);
  void Complete() { completed_.store(id_.sequence, std::memory_order_relaxed); }
  absl::Status Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives);
  absl::Status Exchange(const Messages& messages) { return Exchange(messages.sends, messages.receives); }
  absl::Status ExchangeInSteps(const Pipeline& pipeline);

  // The parts of Meet, for callers that exchange the headers in another way: begin, set the header of every rank,
  // check. The reference stays valid; its bytes change at the next meeting.
  const MeetingHeader& BeginMeeting(uint64_t sequence, const CollectiveSpec& spec);
  void SetHeader(int rank, const MeetingHeader& header) { headers_[rank] = header; }
  absl::Status CheckMeeting(uint64_t sequence);

  // A transport and options for a part of this group; see Split.
  absl::StatusOr<std::unique_ptr<NetCollectives>> SplitNet(const std::vector<int>& members, const BlobGather& gather);

 private:
  // The first half of Meet; CheckMeeting is the other.
  Messages HeaderMessages(uint64_t sequence, const CollectiveSpec& spec);

  // Whether the data are sent along with the headers. RunSmall is Run for such collectives; SmallMessages are the data,
  // and ReduceSmall reduces the received data.
  bool IsSmall(const CollectiveSpec& spec) const;
  absl::Status RunSmall(uint64_t sequence, const Collective& collective);
  Messages SmallMessages(const Collective& collective);
  void ReduceSmall(const Collective& collective);

  // GatherMessages copies this rank's shard into place.
  Messages GatherMessages(const Collective& collective) const;
  Messages BroadcastMessages(const Collective& collective) const;
  absl::Status ReduceScatter(const Collective& collective);
  absl::Status AllReduce(const Collective& collective);

  // The other ranks, starting with this one's successor, so that not all send to one rank at the same time.
  std::vector<int> Others() const;
  // `status`, or the verdict of the watch if `status` is that a connection broke.
  absl::Status OrVerdict(const absl::Status& status) const;

  // A row of scratch memory with `rows` rows, `stride` bytes or a little more apart; makes room first. ScratchOfStep:
  // the row that receives rank `r`'s part in a step.
  std::byte* Scratch(int64_t row, int64_t rows, int64_t stride);
  std::byte* ScratchOfStep(int64_t step, int r, int64_t stride);
  // Elements of this dtype that a rank receives from each other rank at a time.
  int64_t PieceCount(DType dtype) const;

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<Device> device_;
  const NetOptions options_;
  const int rank_;
  const int size_;
  std::atomic<uint64_t> completed_{0};  // the last collective that this rank completed; written by the thread of Run

  // State of the collective that runs.
  CollectiveId id_;
  std::vector<MeetingHeader> headers_;  // by rank
  std::vector<CollectiveSpec> specs_;   // by rank
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> rows_;  // for the reductions, by rank
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_NET_COLLECTIVES_H_
