// SPDX-License-Identifier: Apache-2.0
//
// WatchRoster: the state of the ranks that the server of a job watches, and the verdict that it sends them all: the
// first loss. Later losses are not part of it, because ranks that lose a peer end too.
//
//   Join --> (Watch: from now on its silence counts) --> Hear, Hear, ... --> Leave          no loss
//                                                            |
//                                                            +--> Lose, GiveUp, or silence  a loss
//
// The verdict follows a loss after a short delay, in which the other ranks of the same host may be lost too: then the
// verdict names the host. No clock or I/O: the caller passes the time. Not thread-safe.
#ifndef FSDP_COLLECTIVES_JOB_WATCH_ROSTER_H_
#define FSDP_COLLECTIVES_JOB_WATCH_ROSTER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/collectives/job/store_member.h"

namespace fsdp {

// "2, 3", "0, 8 to 15": ascending ranks, in words.
std::string RankList(const std::vector<int>& ranks);

class WatchRoster {
 public:
  explicit WatchRoster(int world_size) : ranks_(static_cast<size_t>(world_size)) {}

  void Join(const StoreMember& member);

  // Expects to hear from the rank every `interval`, and counts it as lost after `silence` without a message.
  void Watch(int rank, absl::Duration interval, absl::Duration silence, absl::Time now);

  void Hear(int rank, absl::Time now);
  void Leave(int rank);

  // The rank's connection has ended: because its process ended (`is_silent` is false), or because its host does not
  // acknowledge data. No effect after Leave.
  void Lose(int rank, bool is_silent, absl::Time now);
  void GiveUp(int rank, std::string_view reason);

  // Finds ranks that are silent, and forms the verdict when it is due.
  void Look(absl::Time now);

  // The latest time at which Look must be called; never if no rank is watched.
  absl::Time NextLook() const;

  // Counts a heartbeat of every rank: this process did not run for a while, so it could not receive their heartbeats.
  void Forgive(absl::Time now);

  // "rank 3 (host-b, pid 123) is gone", "host-b (ranks 2, 3) does not answer", "rank 1 (host-a, pid 77) gave up:
  // REASON"; empty while no loss is known. After that it does not change.
  const std::string& verdict() const { return verdict_; }

 private:
  enum class State { kAbsent, kHere, kLeft, kGone, kSilent, kGaveUp };

  struct Rank {
    StoreMember member = {};
    State state = State::kAbsent;
    absl::Duration interval = absl::ZeroDuration();
    absl::Duration silence = absl::InfiniteDuration();  // infinite: not watched
    absl::Time heard = absl::InfinitePast();

    bool is_watched() const { return state == State::kHere && silence != absl::InfiniteDuration(); }
  };

  struct Loss {
    int rank = 0;
    absl::Time verdict_at;
  };

  void RecordLoss(int rank, State state, absl::Time verdict_at);
  std::string Describe(const Loss& loss) const;

  std::vector<Rank> ranks_;
  std::optional<Loss> first_;
  std::string verdict_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_WATCH_ROSTER_H_
