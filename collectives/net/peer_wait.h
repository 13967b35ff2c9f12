// SPDX-License-Identifier: Apache-2.0
//
// PeerWait: when a transport's wait for its peers' messages ends without them: one rule for all transports that see
// connections break.
//
// A peer that is lost, or left, is an error of those who wait for it. They wait a little longer for more news first,
// because a rank that dies takes others along, whose last words name it.
#ifndef FSDP_COLLECTIVES_NET_PEER_WAIT_H_
#define FSDP_COLLECTIVES_NET_PEER_WAIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/net/peer_states.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

// Of one wait, which begins now. Not thread-safe.
class PeerWait {
 public:
  // `states` and `watch`, which may be null, are not owned.
  PeerWait(const PeerStates& states, const CollectiveId& what, absl::Duration timeout, const PeerWatch& watch);

  // OK to wait on for `missing`, of whom there is at least one; else the error of the wait: what PeerStates::Check
  // says, or the watch.
  absl::Status Check(absl::Span<const int> missing);

  // How long a sleep may be before the next Check, if nothing else ends it; 1 ms at least.
  absl::Duration Sleep(absl::Duration most) const;

  // kDataLoss: the message of `peer` has another size than this rank wants. `sent`: 5, or "more than 5".
  absl::Status WrongSize(int peer, const absl::AlphaNum& sent, int64_t wanted) const;

 private:
  const PeerStates& states_;
  const CollectiveId what_;
  const absl::Duration timeout_;
  const PeerWatch& watch_;
  const absl::Time start_;
  absl::Time settled_ = absl::InfiniteFuture();  // when the error of a peer that is lost is final
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_PEER_WAIT_H_
