// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/peer_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {
namespace {

// 1 byte of kind, 8 bytes of sequence, 1 byte of code; the text follows.
constexpr size_t kNoticeHeader = 10;

// The codes of absl::StatusCode are gRPC's and do not change.
constexpr int kHighestCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

}  // namespace

std::string Notice::ToBytes() const {
  std::string bytes(kNoticeHeader, '\0');
  bytes[0] = static_cast<char>(kind);
  std::memcpy(&bytes[1], &sequence, sizeof(sequence));
  bytes[9] = static_cast<char>(reason.code());
  return absl::StrCat(bytes, reason.message().substr(0, kMaxBytes - kNoticeHeader));
}

absl::StatusOr<Notice> Notice::Parse(std::string_view bytes) {
  if (bytes.size() < kNoticeHeader || static_cast<int64_t>(bytes.size()) > kMaxBytes) {
    // Other sizes cannot come from ToBytes: the sender is a stranger or another version.
    return absl::DataLossError(
        absl::StrCat("a notice of ", bytes.size(), " bytes, wanted ", kNoticeHeader, " to ", kMaxBytes));
  }
  Notice notice = {.kind = static_cast<Kind>(bytes[0])};
  std::memcpy(&notice.sequence, bytes.data() + 1, sizeof(notice.sequence));
  const int code = static_cast<unsigned char>(bytes[9]);
  const bool gave_up = notice.kind == Kind::kGaveUp;
  // The code becomes an absl::StatusCode below, so a value outside of the enumeration must not pass.
  if ((!gave_up && notice.kind != Kind::kLeft) || (gave_up ? code < 1 || code > kHighestCode : code != 0)) {
    return absl::DataLossError(absl::StrCat("a notice of kind ", static_cast<int>(bytes[0]), " with code ", code));
  }
  const std::string_view text = bytes.substr(kNoticeHeader);
  notice.reason = absl::Status(static_cast<absl::StatusCode>(code), absl::string_view(text.data(), text.size()));
  return notice;
}

PeerStates::PeerStates(int rank, std::vector<std::string> names) : rank_(rank) {
  for (std::string& name : names) {
    peers_.push_back({.name = std::move(name)});
  }
}

void PeerStates::RecordNotice(int peer, const Notice& notice) {
  Peer& theirs = peers_[peer];
  // A rank's own notice says more than its connection, which it closes when it leaves.
  if (theirs.presence != Presence::kPresent && theirs.presence != Presence::kLost) {
    return;
  }
  if (notice.kind == Notice::Kind::kLeft) {
    theirs.presence = Presence::kLeft;
    return;
  }
  theirs.presence = Presence::kGaveUp;
  theirs.gave_up_at = notice.sequence;
  theirs.reason = notice.reason;
  first_to_give_up_ = first_to_give_up_ < 0 ? peer : first_to_give_up_;
}

void PeerStates::MarkLost(int peer, std::string_view reason) {
  Peer& theirs = peers_[peer];
  if (theirs.presence == Presence::kPresent) {
    theirs.presence = Presence::kLost;
    theirs.reason = absl::UnavailableError(absl::string_view(reason.data(), reason.size()));
  }
}

absl::Status PeerStates::Check(const CollectiveId& what, absl::Span<const int> missing, absl::Duration waited,
                               absl::Duration timeout) const {
  // A missing rank that left or is lost comes before one that gave up: it is the cause, and giving up its consequence.
  for (const int peer : missing) {
    if (peers_[peer].presence == Presence::kLeft) {
      return absl::UnavailableError(absl::StrCat(Prefix(what), ": ", peers_[peer].name, " left the group"));
    }
    if (peers_[peer].presence == Presence::kLost) {
      return Lost(what);
    }
  }
  if (first_to_give_up_ >= 0) {
    return GivenUp(what, first_to_give_up_);
  }
  if (waited >= timeout && !missing.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(Prefix(what), " waited ", absl::FormatDuration(timeout),
                                                    "; missing ranks: ", absl::StrJoin(missing, ", ")));
  }
  return absl::OkStatus();
}

absl::Status PeerStates::CheckNobodyGaveUp(const CollectiveId& what) const {
  for (int r = 0; r < size(); ++r) {
    if (peers_[r].presence == Presence::kGaveUp && peers_[r].gave_up_at <= what.sequence) {
      return GivenUp(what, r);
    }
  }
  return absl::OkStatus();
}

// The error keeps the code of the rank that gave up, so that a caller can distinguish a deadline from a death even on a
// rank that only received the message.
absl::Status PeerStates::GivenUp(const CollectiveId& what, int peer) const {
  const std::string who = peer == rank_ ? "this rank" : peers_[peer].name;
  return absl::Status(peers_[peer].reason.code(),
                      absl::StrCat(Prefix(what), ": ", who, " gave up: ", peers_[peer].reason.message()));
}

// Names all lost ranks, because a rank that died takes along others that exit because of it.
absl::Status PeerStates::Lost(const CollectiveId& what) const {
  std::vector<std::string> lost;
  for (const Peer& peer : peers_) {
    if (peer.presence == Presence::kLost) {
      lost.push_back(absl::StrCat(peer.name, " died, or the network to it broke: ", peer.reason.message()));
    }
  }
  return absl::UnavailableError(absl::StrCat(Prefix(what), ": ", absl::StrJoin(lost, "; ")));
}

std::string PeerStates::Prefix(const CollectiveId& what) const {
  return absl::StrCat("rank ", rank_, " of ", size(), ": ", what.ToString());
}

}  // namespace fsdp
