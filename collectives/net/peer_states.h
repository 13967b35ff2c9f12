// SPDX-License-Identifier: Apache-2.0
//
// PeerStates: what a rank knows of its peers: which are present, left, gave up and why, or are lost. The errors of
// every wait come from it, the same for all transports and, word for word, the same as in round_barrier.h.
//
// A rank learns of the others by a Notice that each sends when it gives up or leaves, and from its transport when a
// connection breaks. Not thread-safe: a transport guards it.
#ifndef FSDP_COLLECTIVES_NET_PEER_STATES_H_
#define FSDP_COLLECTIVES_NET_PEER_STATES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/collective.h"

namespace fsdp {

// The last message of a rank.
struct Notice {
  // Values go over the network; never renumber.
  enum class Kind : uint8_t { kGaveUp = 1, kLeft = 2 };

  Kind kind = Kind::kLeft;
  uint64_t sequence = 0;     // kGaveUp: of the first collective that the rank did not complete
  absl::Status reason = {};  // kGaveUp: why; not OK

  // At most kMaxBytes; a longer text is cut. Parse: kDataLoss for bytes that ToBytes does not produce.
  static constexpr int64_t kMaxBytes = 1024;
  std::string ToBytes() const;
  static absl::StatusOr<Notice> Parse(std::string_view bytes);
};

class PeerStates {
 public:
  // `names`: the name of each rank in errors, by rank: "rank 5 (pid 12 on host-b)". All are present.
  PeerStates(int rank, std::vector<std::string> names);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Record the state of `peer`, which may be this rank. Only the first call for a rank has an effect, except that a
  // notice replaces a loss: the two may be learned in either order.
  void RecordNotice(int peer, const Notice& notice);
  void MarkLost(int peer, std::string_view reason);

  bool is_present(int peer) const { return peers_[peer].presence == Presence::kPresent; }
  bool has_left(int peer) const { return peers_[peer].presence == Presence::kLeft; }

  // A reason to stop waiting for `missing`, the peers whose messages have not come, after `waited`; OK if there is no
  // reason. In this order: one of them left; one is lost; any rank gave up; `waited` has reached `timeout`.
  absl::Status Check(const CollectiveId& what, absl::Span<const int> missing, absl::Duration waited,
                     absl::Duration timeout) const;

  // For a wait that is over: the error of the lowest rank that gave up in the collective `what` or before it. A rank
  // that gave up later does not fail it: this rank may be about to find the same error by itself.
  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const;

  // The first in the order in which this rank learned of it; -1 while no rank has given up.
  int first_rank_to_give_up() const { return first_to_give_up_; }

 private:
  enum class Presence { kPresent, kGaveUp, kLeft, kLost };

  struct Peer {
    std::string name;
    Presence presence = Presence::kPresent;
    uint64_t gave_up_at = 0;
    absl::Status reason = {};  // kGaveUp: its own; kLost: the transport's
  };

  absl::Status GivenUp(const CollectiveId& what, int peer) const;
  absl::Status Lost(const CollectiveId& what) const;
  std::string Prefix(const CollectiveId& what) const;  // "rank 2 of 8: all_gather #417"

  const int rank_;
  std::vector<Peer> peers_;
  int first_to_give_up_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_PEER_STATES_H_
