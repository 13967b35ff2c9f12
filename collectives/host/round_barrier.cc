// SPDX-License-Identifier: Apache-2.0
//
// How a rank waits, in Await:
//   1. It stops reading peers' memory, adds to `arrivals`, then notes its arrival in `arrived`, from which peers derive
//      the missing ranks. If it is killed in between, it counts as missing in the next round; the other order would
//      leave a round that never completes although no rank is missing. The rank that completes the round wakes the
//      sleepers, if there are any.
//   2. It spins for a bounded time, if every rank can have a core.
//   3. It sleeps on `arrivals` in slices. After each slice it checks, in this order: is the round complete; did a
//      missing rank die or leave; did a rank give up; does the job's watch miss a rank; is the deadline past. Because
//      of this order all survivors report a dead rank as dead, even if the first of them has already given up for that
//      reason; and a rank may leave while slower ones are still in the last round that it arrived at. A rank that is
//      stopped, or that waits for a lost one on another host, is alive here: only the watch tells.
//
// Sleeper and waker cannot miss each other: the sleeper raises `sleepers` and then reads `arrivals` (in FUTEX_WAIT),
// the waker raises `arrivals` and then reads `sleepers`, all in one total order. GiveUp does not change the futex word,
// so a sleeper can miss its wake-up; that costs one slice.
//
// Round numbers and `arrivals` wrap at 2^32; differences are compared as signed numbers.
#include "fsdp/collectives/host/round_barrier.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/host/futex.h"

namespace fsdp {
namespace {

// The longest time until a death is noticed; half of the 100 ms that docs/collectives.md promises.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

// How long to spin: a few times the cost of a wake-up. And the number of checks between two reads of the clock.
constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr int kLooks = 32;

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

RoundBarrier::RoundBarrier(const Fabric& fabric, absl::Duration timeout, RankNames names, PeerWatch watch)
    : fabric_(fabric),
      control_(fabric.control()),
      size_(fabric.size()),
      timeout_(timeout),
      names_(std::move(names)),
      watch_(std::move(watch)),
      may_spin_(fabric.size() <= AvailableCores()) {}

absl::Status RoundBarrier::Await(const CollectiveId& what, absl::Duration grace) {
  EndReading();
  RankControl& mine = control_.rank(fabric_.rank());
  ++round_;
  control_.group().arrivals.fetch_add(1, std::memory_order_seq_cst);
  mine.arrived.store(round_, std::memory_order_release);
  if (Complete()) {
    if (control_.group().sleepers.load(std::memory_order_seq_cst) > 0) {
      FutexWakeAll(control_.group().arrivals);
    }
  } else if (!Spin()) {
    FSDP_RETURN_IF_ERROR(Sleep(what, SteadyNow() + grace));
  }
  if (control_.group().aborted_by.load(std::memory_order_acquire) != 0) {
    FSDP_RETURN_IF_ERROR(CheckNobodyGaveUp(what));
  }
  mine.completed.store(round_, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool RoundBarrier::Complete() const {
  const uint32_t target = round_ * static_cast<uint32_t>(size_);
  return static_cast<int32_t>(control_.group().arrivals.load(std::memory_order_seq_cst) - target) >= 0;
}

bool RoundBarrier::Spin() const {
  const absl::Time end = SteadyNow() + kSpin;
  while (may_spin_ && SteadyNow() < end) {
    for (int i = 0; i < kLooks; ++i) {
      if (Complete()) {
        return true;
      }
      SpinPause();
    }
  }
  return false;
}

absl::Status RoundBarrier::Sleep(const CollectiveId& what, absl::Time start) {
  GroupControl& group = control_.group();
  absl::Status status;
  group.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t seen = group.arrivals.load(std::memory_order_seq_cst);
    if (Complete()) {
      break;
    }
    status = CheckPeers(what, start);
    if (!status.ok()) {
      // A peer may have arrived, completed the round and left for good after the check listed it as missing.
      if (Complete()) {
        status = absl::OkStatus();
      }
      break;
    }
    const absl::Duration left = start + timeout_ - SteadyNow();
    FutexWait(group.arrivals, seen, std::clamp(left, absl::Milliseconds(1), kSlice));
  }
  group.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return status;
}

absl::Status RoundBarrier::CheckPeers(const CollectiveId& what, absl::Time start) const {
  const std::vector<int> missing = MissingRanks();
  for (const int peer : missing) {
    const Presence presence = control_.rank(peer).presence.load(std::memory_order_acquire);
    if (presence == Presence::kDeparted) {
      return absl::UnavailableError(absl::StrCat(Prefix(what), ": ", NameOf(peer), " left the group"));
    }
    if (presence == Presence::kPresent && !fabric_.IsAlive(peer)) {
      return absl::UnavailableError(absl::StrCat(Prefix(what), ": ", NameOf(peer), " died"));
    }
  }
  if (const uint32_t aborted_by = control_.group().aborted_by.load(std::memory_order_acquire); aborted_by != 0) {
    return GivenUp(what, static_cast<int>(aborted_by) - 1);
  }
  if (watch_ != nullptr) {
    FSDP_RETURN_IF_ERROR(Annotate(watch_(absl::ZeroDuration()), Prefix(what)));
  }
  if (SteadyNow() - start >= timeout_ && !missing.empty()) {
    const auto append_number = [&](std::string* out, int r) { absl::StrAppend(out, NumberOf(r)); };
    return absl::DeadlineExceededError(absl::StrCat(Prefix(what), " waited ", absl::FormatDuration(timeout_),
                                                    "; missing ranks: ", absl::StrJoin(missing, ", ", append_number)));
  }
  return absl::OkStatus();
}

// For a complete round. A rank that gave up after this round does not fail it: this rank may be about to return the
// same error by itself, such as AllReduceStatus's.
absl::Status RoundBarrier::CheckNobodyGaveUp(const CollectiveId& what) const {
  for (int r = 0; r < size_; ++r) {
    const RankControl& theirs = control_.rank(r);
    if (theirs.presence.load(std::memory_order_acquire) == Presence::kGaveUp &&
        static_cast<int32_t>(theirs.abort_round - round_) <= 0) {
      return GivenUp(what, r);
    }
  }
  return absl::OkStatus();
}

absl::Status RoundBarrier::BeginReading(const CollectiveId& what) {
  // This rank sets `reading`, then reads `aborted_by`; a rank that fails sets `aborted_by`, then reads `reading`
  // (AwaitReaders). In one total order at least one of the two sees the other's store.
  control_.rank(fabric_.rank()).reading.store(1, std::memory_order_seq_cst);
  const uint32_t aborted_by = control_.group().aborted_by.load(std::memory_order_seq_cst);
  if (aborted_by == 0) {
    return absl::OkStatus();
  }
  EndReading();
  return GivenUp(what, static_cast<int>(aborted_by) - 1);
}

void RoundBarrier::EndReading() { control_.rank(fabric_.rank()).reading.store(0, std::memory_order_release); }

void RoundBarrier::GiveUp(const absl::Status& reason) {
  const std::lock_guard<std::mutex> lock(give_up_mutex_);
  RankControl& mine = control_.rank(fabric_.rank());
  if (mine.presence.load(std::memory_order_relaxed) != Presence::kPresent) {
    return;
  }
  mine.abort_round = mine.completed.load(std::memory_order_relaxed) + 1;
  mine.abort_code = static_cast<int32_t>(reason.code());
  const size_t length = std::min(reason.message().size(), mine.abort_text.size() - 1);
  std::memcpy(mine.abort_text.data(), reason.message().data(), length);
  mine.abort_text[length] = '\0';
  mine.presence.store(Presence::kGaveUp, std::memory_order_seq_cst);
  uint32_t none = 0;
  control_.group().aborted_by.compare_exchange_strong(none, static_cast<uint32_t>(fabric_.rank()) + 1,
                                                      std::memory_order_seq_cst);
  FutexWakeAll(control_.group().arrivals);
}

void RoundBarrier::AwaitReaders() const {
  if (!fabric_.peers_share_address_space()) {
    return;
  }
  for (int peer = 0; peer < size_; ++peer) {
    while (peer != fabric_.rank() && control_.rank(peer).reading.load(std::memory_order_seq_cst) != 0) {
      absl::SleepFor(absl::Microseconds(20));
    }
  }
}

void RoundBarrier::Depart() {
  const std::lock_guard<std::mutex> lock(give_up_mutex_);
  Presence present = Presence::kPresent;
  control_.rank(fabric_.rank())
      .presence.compare_exchange_strong(present, Presence::kDeparted, std::memory_order_release);
  FutexWakeAll(control_.group().arrivals);
}

// The error keeps the code of the rank that gave up, so that a caller can distinguish a deadline from a death even on a
// rank that only received the message.
absl::Status RoundBarrier::GivenUp(const CollectiveId& what, int peer) const {
  const RankControl& control = control_.rank(peer);
  const std::string who = peer == fabric_.rank() ? "this rank" : NameOf(peer);
  return absl::Status(static_cast<absl::StatusCode>(control.abort_code),
                      absl::StrCat(Prefix(what), ": ", who, " gave up: ", control.abort_text.data()));
}

std::vector<int> RoundBarrier::MissingRanks() const {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    if (static_cast<int32_t>(control_.rank(r).arrived.load(std::memory_order_acquire) - round_) < 0) {
      missing.push_back(r);
    }
  }
  return missing;
}

std::string RoundBarrier::Prefix(const CollectiveId& what) const {
  return absl::StrCat("rank ", NumberOf(fabric_.rank()), " of ", names_.numbers.empty() ? size_ : names_.group_size,
                      ": ", what.ToString());
}

std::string RoundBarrier::NameOf(int peer) const {
  const std::string process = fabric_.Process(peer);
  return absl::StrCat("rank ", NumberOf(peer), process.empty() ? "" : absl::StrCat(" (", process, ")"));
}

}  // namespace fsdp
