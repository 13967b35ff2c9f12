// SPDX-License-Identifier: Apache-2.0
//
// PeerWait: decides when a transport's wait for its peers' messages ends without them. One rule for all transports that
// see connections break.
//
// A lost or departed peer is an error of the ranks that wait for it. They wait briefly before reporting it: the peer
// may have failed because of another rank, and its last message names that rank.
#ifndef FSDP_COLLECTIVES_NET_PEER_WAIT_H_
#define FSDP_COLLECTIVES_NET_PEER_WAIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/net/peer_states.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

// The state of one wait, which begins with the construction. Not thread-safe.
class PeerWait {
 public:
  // `states` and `watch`, which may be null, are not owned.
  PeerWait(const PeerStates& states, const CollectiveId& what, absl::Duration timeout, const PeerWatch& watch);

  // OK to continue waiting for `missing`, at least one peer; else the error of the wait, from PeerStates::Check or the
  // watch.
  absl::Status Check(absl::Span<const int> missing);

  // The longest sleep before the next Check; 1 ms at least.
  absl::Duration Sleep(absl::Duration most) const;

  // kDataLoss: the message of `peer` has another size than this rank wants. `sent`: 5, or "more than 5".
  absl::Status WrongSize(int peer, const absl::AlphaNum& sent, int64_t wanted) const;

 private:
  const PeerStates& states_;
  const CollectiveId what_;
  const absl::Duration timeout_;
  const PeerWatch& watch_;
  const absl::Time start_;
  absl::Time settled_ = absl::InfiniteFuture();  // when the error of a lost peer is final
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_PEER_WAIT_H_
