// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/watch_roster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// When a host ends, the connections of its ranks end within milliseconds of each other.
constexpr absl::Duration kTogether = absl::Milliseconds(100);

// Ranks whose host became silent sent their last heartbeats at most one interval apart.
constexpr double kIntervalsTogether = 1.2;

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    // A run of two is written "2, 3", which is shorter than "2 to 3".
    const bool is_run = end - i > 2;
    absl::StrAppend(&text, text.empty() ? "" : ", ", ranks[i], is_run ? absl::StrCat(" to ", ranks[end - 1]) : "");
    i = is_run ? end : i + 1;
  }
  return text;
}

void WatchRoster::Join(const StoreMember& member) { ranks_[member.rank] = {.member = member, .state = State::kHere}; }

void WatchRoster::Watch(int rank, absl::Duration interval, absl::Duration silence, absl::Time now) {
  ranks_[rank].interval = interval;
  ranks_[rank].silence = silence;
  ranks_[rank].heard = now;
}

void WatchRoster::Hear(int rank, absl::Time now) { ranks_[rank].heard = now; }

void WatchRoster::Leave(int rank) {
  if (ranks_[rank].state == State::kHere) ranks_[rank].state = State::kLeft;
}

void WatchRoster::Lose(int rank, bool is_silent, absl::Time now) {
  if (ranks_[rank].state != State::kHere) return;
  RecordLoss(rank, is_silent ? State::kSilent : State::kGone,
             now + (is_silent ? kIntervalsTogether * ranks_[rank].interval : kTogether));
}

void WatchRoster::GiveUp(int rank, std::string_view reason) {
  if (ranks_[rank].state != State::kHere) return;
  RecordLoss(rank, State::kGaveUp, absl::InfinitePast());
  // The reason is not stored, so the verdict is formed here and does not wait for Look.
  if (first_->rank == rank && verdict_.empty()) verdict_ = absl::StrCat(Describe(*first_), Printable(reason));
}

void WatchRoster::RecordLoss(int rank, State state, absl::Time verdict_at) {
  ranks_[rank].state = state;
  // Later losses change only the state of their ranks; Describe uses it to see whether a whole host is lost.
  if (!first_.has_value()) first_ = {.rank = rank, .verdict_at = verdict_at};
}

void WatchRoster::Look(absl::Time now) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    // A rank that never called Watch has an infinite silence and is not checked.
    if (ranks_[r].is_watched() && now - ranks_[r].heard >= ranks_[r].silence) {
      Lose(static_cast<int>(r), /*is_silent=*/true, now);
    }
  }
  if (first_.has_value() && verdict_.empty() && now >= first_->verdict_at) verdict_ = Describe(*first_);
}

absl::Time WatchRoster::NextLook() const {
  if (!verdict_.empty()) return absl::InfiniteFuture();
  absl::Time next = first_.has_value() ? first_->verdict_at : absl::InfiniteFuture();
  for (const Rank& rank : ranks_) {
    if (rank.is_watched()) next = std::min(next, rank.heard + rank.silence);
  }
  return next;
}

void WatchRoster::Forgive(absl::Time now) {
  for (Rank& rank : ranks_) {
    if (rank.is_watched()) rank.heard = now;
  }
}

// The verdict names a host if it has several ranks and all of them that had not left were lost in the same way. Host
// names are compared: containers with one name count as one host, which is then named only if all of them were lost.
std::string WatchRoster::Describe(const Loss& loss) const {
  const Rank& lost = ranks_[loss.rank];
  std::vector<int> alike;
  bool is_whole_host = true;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.member.host != lost.member.host || rank.state == State::kAbsent || rank.state == State::kLeft) continue;
    is_whole_host &= rank.state == lost.state;
    alike.push_back(static_cast<int>(r));
  }
  const std::string host = Printable(lost.member.host);
  if (lost.state == State::kGaveUp) {
    return absl::StrCat("rank ", loss.rank, " (", host, ", pid ", lost.member.pid, ") gave up: ");
  }
  const char* const what = lost.state == State::kGone ? " is gone" : " does not answer";
  return is_whole_host && alike.size() > 1
             ? absl::StrCat(host, " (ranks ", RankList(alike), ")", what)
             : absl::StrCat("rank ", loss.rank, " (", host, ", pid ", lost.member.pid, ")", what);
}

}  // namespace fsdp
