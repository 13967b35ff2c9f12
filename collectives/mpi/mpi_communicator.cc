// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/mpi/mpi_communicator.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

// The tag of last messages.
constexpr int kLastTag = 2;

// The tag of MPI_Comm_create_group, whose messages are in `parent`, possibly MPI_COMM_WORLD: a program that creates
// groups in it at the same time is unlikely to choose the same tag.
constexpr int kGroupTag = 20533;

constexpr absl::Duration kLastWords = absl::Milliseconds(200);
constexpr absl::Duration kPause = absl::Microseconds(50);

// How long the end of the process waits for the last messages of others before it finalizes MPI.
constexpr absl::Duration kEnd = absl::Seconds(1);

struct Closing {
  std::mutex mutex;
  std::list<std::unique_ptr<MpiCommunicator>> communicators;  // guarded by mutex
};

// Never destroyed: the end of the process still uses it.
Closing& TheClosing() {
  static Closing* const closing = new Closing;
  return *closing;
}

void AwaitClosing() {
  const absl::Time end = SteadyNow() + kEnd;
  while (!MpiCommunicator::FreeClosed() && SteadyNow() < end) absl::SleepFor(kPause);
}

}  // namespace

// Tests one by one, so that each has its own error.
bool AwaitRequests(std::vector<MpiHandle>& requests, absl::Duration most) {
  const absl::Time end = SteadyNow() + most;
  while (true) {
    bool are_done = true;
    for (MpiHandle& request : requests) {
      if (request == FSDP_MPI_NO_REQUEST) continue;
      MpiReceived received = {};
      Mpi().test(&request, &received);
      are_done = are_done && request == FSDP_MPI_NO_REQUEST;
    }
    if (are_done || SteadyNow() >= end) return are_done;
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<std::unique_ptr<MpiCommunicator>> MpiCommunicator::Create(MpiHandle parent,
                                                                         const std::vector<int>& ranks) {
  CallBeforeFinalize(AwaitClosing);
  FreeClosed();
  MpiHandle handle = 0;
  FSDP_RETURN_IF_ERROR(
      MpiStatus(Mpi().create_communicator(parent, static_cast<int>(ranks.size()), ranks.data(), kGroupTag, &handle),
                "MPI_Comm_create_group"));
  // A new communicator inherits the handler of its parent, which may end the process.
  Mpi().return_errors(handle);
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(handle));
}

MpiCommunicator::MpiCommunicator(MpiHandle handle)
    : handle_(handle), rank_(Mpi().rank_of(handle)), size_(Mpi().size_of(handle)), incoming_(kMaxBytes) {
  // Posted from the start: a peer may leave at any time.
  missing_ = size_ - 1;
  Expect();
}

void MpiCommunicator::Expect() {
  if (missing_ == 0) return;
  const int error =
      Mpi().receive(incoming_.data(), kMaxBytes, FSDP_MPI_ANY_SOURCE, kLastTag, handle_, &incoming_request_);
  if (error != 0) Fail();
}

std::optional<MpiLastMessage> MpiCommunicator::ReceiveLast() {
  if (incoming_request_ == FSDP_MPI_NO_REQUEST) return std::nullopt;
  MpiReceived received = {};
  if (Mpi().test(&incoming_request_, &received) != 0) {
    Fail();
    return std::nullopt;
  }
  if (incoming_request_ != FSDP_MPI_NO_REQUEST) return std::nullopt;
  MpiLastMessage message = {.peer = received.source,
                            .text = std::string(incoming_.data(), std::max(received.nbytes, 0))};
  --missing_;
  // One receive at a time, because all use one buffer.
  Expect();
  return message;
}

void MpiCommunicator::SendLast(std::string text) {
  // Kept in a member: MPI reads it after this function has returned.
  outgoing_ = std::move(text);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    MpiHandle& request = outgoing_requests_.emplace_back(FSDP_MPI_NO_REQUEST);
    const int error = Mpi().send(outgoing_.data(), static_cast<int>(outgoing_.size()), r, kLastTag, handle_, &request);
    if (error != 0) Fail();
  }
  AwaitRequests(outgoing_requests_, kLastWords);
}

bool MpiCommunicator::IsOver() {
  while (ReceiveLast().has_value()) {
  }
  return missing_ == 0 && AwaitRequests(outgoing_requests_, absl::ZeroDuration());
}

void MpiCommunicator::Fail() {
  has_failed_ = true;
  if (use_.has_value()) use_->Fail();
}

void MpiCommunicator::Close(std::unique_ptr<MpiCommunicator> communicator) {
  if (communicator->has_failed_ || !CanCallMpi()) {
    // Deliberately leaked: MPI may still read or write its buffers.
    static_cast<void>(communicator.release());
    return;
  }
  // From here on it does not keep the end of the process from finalizing MPI; AwaitClosing waits for it first.
  communicator->use_.reset();
  {
    const std::lock_guard<std::mutex> lock(TheClosing().mutex);
    TheClosing().communicators.push_back(std::move(communicator));
  }
  FreeClosed();
}

bool MpiCommunicator::FreeClosed() {
  Closing& closing = TheClosing();
  // Several threads may close communicators, and MPI may be called from any (MPI_THREAD_MULTIPLE).
  const std::lock_guard<std::mutex> lock(closing.mutex);
  for (auto it = closing.communicators.begin(); it != closing.communicators.end();) {
    if ((*it)->IsOver()) {
      Mpi().free_communicator((*it)->handle_);
      it = closing.communicators.erase(it);
    } else {
      ++it;
    }
  }
  return closing.communicators.empty();
}

}  // namespace fsdp
