// SPDX-License-Identifier: Apache-2.0
//
// UcxExchange: the messages of one rank of a group over its UCX worker, as a Transport. CreateUcxTransport
// (ucx_transport.h) makes it.
#ifndef FSDP_COLLECTIVES_NET_UCX_EXCHANGE_H_
#define FSDP_COLLECTIVES_NET_UCX_EXCHANGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/net/offer.h"
#include "fsdp/collectives/net/peer_states.h"
#include "fsdp/collectives/net/peer_wait.h"
#include "fsdp/collectives/net/transport.h"
#include "fsdp/collectives/net/ucx_transport.h"
#include "fsdp/collectives/net/ucx_worker.h"

namespace fsdp {

enum class UcxMessageKind : uint8_t { kHello = 1, kData = 2, kNotice = 3 };

class UcxExchange final : public Transport {
 public:
  // `names` of all ranks, for errors.
  UcxExchange(int rank, const Nonce& nonce, UcxTransportOptions options, std::vector<std::string> names);
  ~UcxExchange() override;

  // Makes an endpoint to every other rank, and exchanges first messages with all of them. `addresses`: by rank; empty
  // for this one.
  absl::Status Connect(std::unique_ptr<UcxWorker> worker, const std::vector<std::string>& addresses);

  // Refuses all further connections. Call it when all ranks are connected.
  void ClosePorts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    worker_->ClosePorts();
  }

  int rank() const override { return rank_; }
  int size() const override { return states_.size(); }
  absl::Status Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives, const CollectiveId& what,
                        absl::Duration timeout) override {
    return ExchangeAs(UcxMessageKind::kData, sends, receives, what, timeout);
  }
  absl::Status ExchangeInSteps(const Pipeline& pipeline, const CollectiveId& what, absl::Duration timeout) override;
  void AwaitSends() override;
  void Tell(const Notice& notice) override;
  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_.CheckNobodyGaveUp(what);
  }
  int first_rank_to_give_up() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_.first_rank_to_give_up();
  }
  absl::StatusOr<std::unique_ptr<Transport>> Split(const std::vector<int>& members, const BlobGather& gather) override;

 private:
  // Messages under way. A deque, because UCX keeps their addresses.
  using UnderWay = std::deque<UcxMessage>;

  // The last message of a peer; it may arrive at any time.
  struct IncomingNotice {
    std::array<std::byte, Notice::kMaxBytes> bytes;
    UcxMessage message;
    bool is_read = false;
  };

  absl::Status ExchangeAs(UcxMessageKind kind, absl::Span<const Send> sends, absl::Span<const Receive> receives,
                          const CollectiveId& what, absl::Duration timeout);
  void Start(UcxMessageKind kind, absl::Span<const Send> sends, absl::Span<const Receive> receives, UnderWay& messages);
  absl::Status AwaitAll(std::unique_lock<std::mutex>& lock, UnderWay& messages, const CollectiveId& what,
                        absl::Duration timeout);
  // Records the errors of messages that are done, drops these messages, and returns the peers whose messages are
  // missing.
  absl::Status Settle(UnderWay& messages, const PeerWait& wait, std::vector<int>& missing);
  void ReadNotices();
  void Abandon(std::deque<UnderWay> exchanges);
  void EndWorker();
  // Advances the worker until `done` or for `most`; with the lock held.
  template <typename Done>
  void ProgressUntil(const Done& done, absl::Duration most);
  static bool AreDone(const UnderWay& messages);
  void Free(UcxMessage& message);
  void DropDone(UnderWay& messages);

  const int rank_;
  const Nonce nonce_;
  const UcxTransportOptions options_;
  const int creator_pid_;  // a forked child has copies of the connections and must not close them

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  PeerStates states_;
  std::vector<IncomingNotice> notices_;  // by rank
  bool has_told_ = false;
  std::string last_words_;             // this rank's notice
  UnderWay last_messages_;             // which carry it
  std::deque<UnderWay> abandoned_;     // from a failed Exchange; their memory is the caller's
  std::unique_ptr<UcxWorker> worker_;  // last, because it calls back until it is gone
};

// `members`: the ranks of `gather` that are the new group, in its order. A rank that fails still takes part in both
// gathers, so that no rank waits for it.
absl::StatusOr<std::unique_ptr<Transport>> JoinUcxGroup(std::shared_ptr<UcxContext> context,
                                                        const std::vector<int>& members, int rank_of_gather,
                                                        const UcxTransportOptions& options, const BlobGather& gather);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_UCX_EXCHANGE_H_
