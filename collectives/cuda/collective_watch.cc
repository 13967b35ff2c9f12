// SPDX-License-Identifier: Apache-2.0
//
// States of a watch; only its own thread changes them:
//
//   exchanging --(verdict)-------------> broken: failure_ is set; only waits for the destructor
//       |                                   ^
//       +--(a rank leaves)--> no rounds ----+  (a call that a departed rank never reached, or past its deadline)
//
// A single collective on a GPU cannot be cancelled: the only way to end a kernel that spins is to abort the whole
// communicator. For this reason the first error is final, and all ranks must agree on it: if one rank aborted, the
// collectives of the others would hang.
//
// The order in Break matters. The error is stored before the abort, so that a thread that is released by the abort
// finds the error that caused it, and not "the communicator was aborted".
#include "fsdp/collectives/cuda/collective_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {

absl::Status GroupFailure::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void GroupFailure::Set(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
}

CollectiveWatch::CollectiveWatch(std::unique_ptr<ProcessGroup> control, std::shared_ptr<CudaCommunicator> communicator,
                                 const WatchTimes& times, std::function<void(const absl::Status&)> broken)
    : control_(std::move(control)),
      communicator_(std::move(communicator)),
      times_(times),
      broken_(std::move(broken)),
      rank_(control_->rank()),
      size_(control_->size()),
      thread_([this] { Loop(); }) {}

CollectiveWatch::~CollectiveWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void CollectiveWatch::Begin(const CollectiveId& id, const CollectiveSpec& spec, Event begun) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.push_back({.id = id, .begun = std::move(begun), .ended = std::nullopt});
  mine_.issued = id.sequence;
  mine_.calls.emplace_back(id.sequence, spec);
}

void CollectiveWatch::End(const CollectiveId& id, Event ended) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Call& call : calls_) {
    if (call.id.sequence == id.sequence) call.ended = std::move(ended);
  }
}

absl::Status CollectiveWatch::Refuse(const CollectiveId& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status first = failure_->status();
  if (first.ok()) return first;
  if (gave_up_ >= 0) {
    // The group broke while this rank had no call running. This call is the first one to fail, so its name goes into
    // the error that streams report.
    failure_->Set(WithMessage(reason_, absl::StrCat(Prefix(id), ": ", GaveUp(gave_up_, reason_))));
    gave_up_ = -1;
    return failure_->status();
  }
  return Annotate(first, absl::StrCat(Prefix(id), ": the group is broken since its first error"));
}

void CollectiveWatch::GiveUp(const absl::Status& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_->status().ok()) return;
    mine_.fault = reason;
  }
  Break(reason, rank_);
  wake_.notify_all();
}

void CollectiveWatch::Loop() {
  bool exchanges = size_ > 1;
  while (true) {
    bool leaves = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(times_.interval), [&] { return closing_ || !mine_.fault.ok(); });
      leaves = closing_;
      if (leaves) mine_.leaves = true;
    }
    PollStreams();
    if (exchanges) exchanges = Exchange();
    if (leaves) return;
    if (!exchanges) {
      CheckDeparted();
      std::unique_lock<std::mutex> lock(mutex_);
      if (!failure_->status().ok()) wake_.wait(lock, [&] { return closing_; });  // the first error is final
    }
  }
}

// Calls begin and end in the order of issue (CudaProcessGroup::Follow), so both loops stop at the first call that has
// not. Events are synchronized without the mutex: an error of the stream may be reported through this watch.
void CollectiveWatch::PollStreams() {
  absl::Status fault = communicator_->AsyncError();
  std::vector<Event> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_->status().ok()) return;
    for (Call& call : calls_) {
      if (call.since != absl::InfiniteFuture()) continue;
      if (!call.begun.Query()) break;  // later calls have not begun either
      call.since = SteadyNow();
      mine_.begun = call.id.sequence;
    }
    while (!calls_.empty() && calls_.front().ended.has_value() && calls_.front().ended->Query()) {
      ended.push_back(*std::move(calls_.front().ended));
      calls_.pop_front();
    }
    const bool late = !calls_.empty() && SteadyNow() - calls_.front().since >= times_.timeout;
    mine_.stalled = late ? calls_.front().id : CollectiveId();
  }
  for (const Event& event : ended) {
    if (fault.ok()) fault = event.Synchronize();  // reached, so it does not block
  }
  if (!fault.ok()) GiveUp(fault);
}

bool CollectiveWatch::Exchange() {
  std::string bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Calls are sent once. The copy in unmatched_ keeps them until all ranks have sent theirs.
    bytes = mine_.Encode();
    mine_.calls.clear();
  }
  const absl::StatusOr<std::vector<std::string>> gathered = control_->AllGatherObject(bytes);
  absl::StatusOr<std::vector<Heartbeat>> beats = std::vector<Heartbeat>();
  if (!gathered.ok()) beats = gathered.status();
  for (int r = 0; beats.ok() && r < size_; ++r) {
    absl::StatusOr<Heartbeat> beat = Heartbeat::Decode((*gathered)[r]);
    beat.ok() ? beats->push_back(*std::move(beat)) : void(beats = beat.status());
  }
  if (!beats.ok()) {
    CollectiveId id;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      id = calls_.empty() ? CollectiveId{CollectiveOp::kBarrier, mine_.issued} : calls_.front().id;
    }
    Break(Annotate(beats.status(), Prefix(id)), -1);
    return false;
  }
  // If this rank found a fault after it sent its heartbeat, it sends the fault in one more round. The others take part
  // in that round too: they saw no verdict in this one.
  return !Judge(*beats);
}

// Returns true if these heartbeats were the last. All ranks have the same heartbeats and apply these rules in the same
// order, so all report the same cause. A fault comes first: the other rules may only show its consequences.
bool CollectiveWatch::Judge(const std::vector<Heartbeat>& beats) {
  for (int r = 0; r < size_; ++r) {
    if (beats[r].fault.ok()) continue;
    Break(beats[r].fault, r);
    return true;
  }
  if (absl::Status differ = Disagreement(beats); !differ.ok()) {
    Break(differ, -1);
    return true;
  }
  for (int r = 0; r < size_; ++r) {
    if (beats[r].stalled.sequence == 0) continue;
    const absl::Status late = Late(beats, r);
    Break(late, r == rank_ ? -1 : r);
    return true;
  }
  if (std::none_of(beats.begin(), beats.end(), [](const Heartbeat& beat) { return beat.leaves; })) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Heartbeat& beat : beats) departed_.push_back(beat.leaves ? beat.issued : UINT64_MAX);
  return true;
}

// The deadline of rank `r`'s stalled call, with the ranks whose streams have not reached that call.
absl::Status CollectiveWatch::Late(const std::vector<Heartbeat>& beats, int r) const {
  const CollectiveId& stalled = beats[r].stalled;
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    if (beats[peer].begun < stalled.sequence) missing.push_back(peer);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", r, " of ", size_, ": ", stalled.ToString(), " waited ", absl::FormatDuration(times_.timeout),
      missing.empty() ? "; all ranks are in it" : absl::StrCat("; missing ranks: ", absl::StrJoin(missing, ", "))));
}

// Compares the calls that all ranks have sent by now. `unmatched_` holds the calls by which the fastest rank is ahead
// of the slowest one.
absl::Status CollectiveWatch::Disagreement(const std::vector<Heartbeat>& beats) {
  for (int r = 0; r < size_; ++r) {
    for (const auto& [sequence, spec] : beats[r].calls) unmatched_[sequence].emplace(r, spec);
  }
  while (!unmatched_.empty() && unmatched_.begin()->second.size() == static_cast<size_t>(size_)) {
    const auto first = unmatched_.begin();
    std::vector<CollectiveSpec> specs;
    for (const auto& [r, spec] : first->second) specs.push_back(spec);
    FSDP_RETURN_IF_ERROR(CheckAgreement(specs, first->first));
    unmatched_.erase(first);
  }
  return absl::OkStatus();
}

// After rounds have ended: fails calls that a departed rank never reached, and calls past their deadline.
void CollectiveWatch::CheckDeparted() {
  absl::Status error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_->status().ok()) return;
    for (const Call& call : calls_) {
      for (size_t r = 0; r < departed_.size() && error.ok(); ++r) {
        if (call.id.sequence <= departed_[r]) continue;
        error = absl::UnavailableError(absl::StrCat(Prefix(call.id), ": rank ", r, " left the group"));
      }
    }
    if (error.ok() && mine_.stalled.sequence > 0) {
      error = absl::DeadlineExceededError(
          absl::StrCat(Prefix(mine_.stalled), " waited ", absl::FormatDuration(times_.timeout)));
    }
  }
  if (!error.ok()) Break(error, -1);
}

// `rank_that_gave_up`: the rank whose error it is. -1: the error already names this rank and its call.
void CollectiveWatch::Break(const absl::Status& error, int rank_that_gave_up) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_->status().ok()) return;
    std::string text(error.message());
    if (rank_that_gave_up >= 0) {
      const std::string prefix = calls_.empty() ? absl::StrCat("rank ", rank_, " of ", size_) : Prefix(calls_[0].id);
      text = absl::StrCat(prefix, ": ", GaveUp(rank_that_gave_up, error));
      if (calls_.empty()) gave_up_ = rank_that_gave_up;
      reason_ = error;
    }
    failure_->Set(WithMessage(error, text));
  }
  communicator_->Abort();
  broken_(error);
}

std::string CollectiveWatch::Prefix(const CollectiveId& id) const {
  return absl::StrCat("rank ", rank_, " of ", size_, ": ", id.ToString());
}

std::string CollectiveWatch::GaveUp(int rank, const absl::Status& reason) const {
  return absl::StrCat(rank == rank_ ? "this rank" : absl::StrCat("rank ", rank), " gave up: ", reason.message());
}

}  // namespace fsdp
