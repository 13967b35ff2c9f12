// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/mpi/mpi_communicator.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Of messages in our communicators.
constexpr int kLastTag = 2;

// Of MPI_Comm_create_group, whose messages are in `parent`, which may be MPI_COMM_WORLD: a program that makes groups in
// it at the same time is not likely to choose this one too.
constexpr int kGroupTag = 20533;

constexpr absl::Duration kLastWords = absl::Milliseconds(200);
constexpr absl::Duration kPause = absl::Microseconds(50);

// How long the end of the process waits for the last messages of others before it finalizes MPI.
constexpr absl::Duration kEnd = absl::Seconds(1);

struct Closing {
  std::mutex mutex;
  std::list<std::unique_ptr<MpiCommunicator>> communicators;  // guarded by mutex
};

// Never destroyed: the end of the process uses it.
Closing& TheClosing() {
  static Closing* const closing = new Closing;
  return *closing;
}

void AwaitClosing() {
  const absl::Time end = absl::Now() + kEnd;
  while (!MpiCommunicator::FreeClosed() && absl::Now() < end) absl::SleepFor(kPause);
}

}  // namespace

// One by one, so that each has an error of its own.
bool AwaitRequests(std::vector<MPI_Request>& requests, absl::Duration most) {
  const absl::Time end = absl::Now() + most;
  while (true) {
    bool are_done = true;
    for (MPI_Request& request : requests) {
      int is_done = 0;
      if (request == MPI_REQUEST_NULL) continue;
      if (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) request = MPI_REQUEST_NULL;
      are_done = are_done && request == MPI_REQUEST_NULL;
    }
    if (are_done || absl::Now() >= end) return are_done;
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<std::unique_ptr<MpiCommunicator>> MpiCommunicator::Create(MPI_Comm parent,
                                                                         const std::vector<int>& ranks) {
  CallBeforeFinalize(AwaitClosing);
  FreeClosed();
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group part = MPI_GROUP_NULL;
  MPI_Comm handle = MPI_COMM_NULL;
  FSDP_RETURN_IF_ERROR(MpiStatus(MPI_Comm_group(parent, &all), "MPI_Comm_group"));
  const int included = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &part);
  const int created = included == MPI_SUCCESS ? MPI_Comm_create_group(parent, part, kGroupTag, &handle) : MPI_SUCCESS;
  if (part != MPI_GROUP_NULL) MPI_Group_free(&part);
  MPI_Group_free(&all);
  FSDP_RETURN_IF_ERROR(MpiStatus(included, "MPI_Group_incl"));
  FSDP_RETURN_IF_ERROR(MpiStatus(created, "MPI_Comm_create_group"));
  MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(handle));
}

MpiCommunicator::MpiCommunicator(MPI_Comm handle) : handle_(handle), incoming_(kMaxBytes) {
  MPI_Comm_rank(handle_, &rank_);
  MPI_Comm_size(handle_, &size_);
  missing_ = size_ - 1;
  Expect();
}

void MpiCommunicator::Expect() {
  if (missing_ == 0) return;
  const int error =
      MPI_Irecv(incoming_.data(), kMaxBytes, MPI_BYTE, MPI_ANY_SOURCE, kLastTag, handle_, &incoming_request_);
  if (error == MPI_SUCCESS) return;
  incoming_request_ = MPI_REQUEST_NULL;
  Fail();
}

std::optional<MpiLastMessage> MpiCommunicator::ReceiveLast() {
  if (incoming_request_ == MPI_REQUEST_NULL) return std::nullopt;
  int is_done = 0;
  MPI_Status status = {};
  const int error = MPI_Test(&incoming_request_, &is_done, &status);
  if (error != MPI_SUCCESS) {
    incoming_request_ = MPI_REQUEST_NULL;
    Fail();
    return std::nullopt;
  }
  if (is_done == 0) return std::nullopt;
  int received = 0;
  MPI_Get_count(&status, MPI_BYTE, &received);
  MpiLastMessage message = {.peer = status.MPI_SOURCE, .text = std::string(incoming_.data(), std::max(received, 0))};
  --missing_;
  Expect();
  return message;
}

void MpiCommunicator::SendLast(std::string text) {
  outgoing_ = std::move(text);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    MPI_Request& request = outgoing_requests_.emplace_back(MPI_REQUEST_NULL);
    const int error =
        MPI_Isend(outgoing_.data(), static_cast<int>(outgoing_.size()), MPI_BYTE, r, kLastTag, handle_, &request);
    if (error == MPI_SUCCESS) continue;
    request = MPI_REQUEST_NULL;
    Fail();
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
    // MPI may still read or write what it has.
    static_cast<void>(communicator.release());
    return;
  }
  communicator->use_.reset();
  {
    const std::lock_guard<std::mutex> lock(TheClosing().mutex);
    TheClosing().communicators.push_back(std::move(communicator));
  }
  FreeClosed();
}

bool MpiCommunicator::FreeClosed() {
  Closing& closing = TheClosing();
  const std::lock_guard<std::mutex> lock(closing.mutex);
  for (auto it = closing.communicators.begin(); it != closing.communicators.end();) {
    if ((*it)->IsOver()) {
      MPI_Comm_free(&(*it)->handle_);
      it = closing.communicators.erase(it);
    } else {
      ++it;
    }
  }
  return closing.communicators.empty();
}

}  // namespace fsdp
