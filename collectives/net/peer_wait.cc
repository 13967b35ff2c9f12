// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/peer_wait.h"

#include <algorithm>

#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

// The time in which a notice that explains a lost connection may still arrive.
constexpr absl::Duration kSettling = absl::Milliseconds(100);

}  // namespace

PeerWait::PeerWait(const PeerStates& states, const CollectiveId& what, absl::Duration timeout, const PeerWatch& watch)
    : states_(states), what_(what), timeout_(timeout), watch_(watch), start_(SteadyNow()) {}

absl::Status PeerWait::Check(absl::Span<const int> missing) {
  const absl::Time now = SteadyNow();
  absl::Status status = states_.Check(what_, missing, now - start_, timeout_);
  if (!status.ok()) {
    if (!absl::IsUnavailable(status) || now >= settled_) return status;
    settled_ = std::min(settled_, now + kSettling);
    return absl::OkStatus();
  }
  if (watch_ == nullptr) return absl::OkStatus();
  return Annotate(watch_(absl::ZeroDuration()),
                  absl::StrCat("rank ", states_.rank(), " of ", states_.size(), ": ", what_.ToString()));
}

absl::Duration PeerWait::Sleep(absl::Duration most) const {
  const absl::Duration left = std::min(start_ + timeout_, settled_) - SteadyNow();
  return std::clamp(left, absl::Milliseconds(1), most);
}

absl::Status PeerWait::WrongSize(int peer, const absl::AlphaNum& sent, int64_t wanted) const {
  return absl::DataLossError(absl::StrCat("rank ", states_.rank(), " of ", states_.size(), ": ", what_.ToString(),
                                          ": rank ", peer, " sent ", sent, " bytes, wanted ", wanted));
}

}  // namespace fsdp
