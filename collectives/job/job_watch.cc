// SPDX-License-Identifier: Apache-2.0
//
// The thread sends and receives frames of store_frame.h until the watch ends:
//
//   watching --(kStoreLoss, or the server is lost)--> verdict: heartbeats continue, so that this rank is not lost too
//      |
//      +-----(kStoreEnd, or Leave)--> ended: losses are not reported any more
//
// HangUp waits for the end of the connection: closing a socket with unread heartbeats resets the connection, and data
// that the server has not read yet, such as this rank's Leave, would be lost.
#include "fsdp/collectives/job/job_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

constexpr size_t kMaxReasonBytes = 1024;

// How long the destructor waits for rank 0's process to close the connection.
constexpr absl::Duration kHangUp = absl::Seconds(1);

StoreFrame Frame(StoreRequest request) { return {.kind = static_cast<uint32_t>(request)}; }

}  // namespace

absl::StatusOr<std::unique_ptr<JobWatch>> JobWatch::Start(std::unique_ptr<Store> store,
                                                          std::unique_ptr<StoreServer> server,
                                                          const WatchOptions& options) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) {
    return absl::ResourceExhaustedError("watch: no descriptor left");
  }
  FSDP_ASSIGN_OR_RETURN(FileDescriptor socket, store->Watch(options.interval, options.silence));
  std::unique_ptr<JobWatch> watch(
      new JobWatch(std::move(socket), std::move(wake), store->server(), std::move(server), options));
  // Started last, because Run uses all members.
  watch->thread_ = std::thread([watching = watch.get()] { watching->Run(); });
  return watch;
}

JobWatch::JobWatch(FileDescriptor socket, FileDescriptor wake, StoreMember server_member,
                   std::unique_ptr<StoreServer> server, const WatchOptions& options)
    : options_(options),
      server_member_(std::move(server_member)),
      wake_(std::move(wake)),
      socket_(std::move(socket)),
      heard_(SteadyNow()),
      server_(std::move(server)) {}

JobWatch::~JobWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

absl::Status JobWatch::Verdict(absl::Duration wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_known = [this] { return !verdict_.empty() || has_ended_; };
  if (wait == absl::InfiniteDuration()) {
    changed_.wait(lock, is_known);
  } else if (wait > absl::ZeroDuration()) {  // collectives check without waiting, before each of their sleeps
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), is_known);
  }
  return verdict_.empty() ? absl::OkStatus() : absl::UnavailableError(verdict_);
}

void JobWatch::GiveUp(std::string_view reason) {
  StoreFrame frame = Frame(StoreRequest::kGiveUp);
  frame.value = std::string(reason.substr(0, kMaxReasonBytes));
  Queue(frame);
}

void JobWatch::Leave() {
  Queue(Frame(StoreRequest::kLeave));
  const std::lock_guard<std::mutex> lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

void JobWatch::Queue(const StoreFrame& frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // After the end or a verdict the server ignores this rank's messages, so nothing is queued.
  if (has_ended_ || !verdict_.empty()) return;
  output_ += EncodeStoreFrame(frame);
  eventfd_write(wake_.get(), 1);
}

void JobWatch::Run() {
  absl::Time next_beat = SteadyNow() + options_.interval;
  absl::Time turn = SteadyNow();
  while (true) {
    AwaitEvent(next_beat);
    const bool is_open = Read();
    const absl::Time now = SteadyNow();
    // This process has paused, so rank 0 may have paused with it, and its next heartbeat may be on the way.
    if (now - turn >= options_.silence / 2) heard_ = now;
    turn = now;
    if (now - heard_ >= options_.silence) {
      LoseServer("does not answer");
      heard_ = now;  // the verdict is known; checks again only after another silence
    }
    if (now >= next_beat) {
      next_beat = now + options_.interval;
      const std::lock_guard<std::mutex> lock(mutex_);
      // A server that does not read must not make this rank queue more and more.
      if (output_.empty()) output_ = EncodeStoreFrame(Frame(StoreRequest::kBeat));
    }
    Write();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ending_ || !is_open) break;
  }
  HangUp();
}

void JobWatch::AwaitEvent(absl::Time next_beat) {
  bool has_output = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Without this check a wake that came before the poll would be lost: is_ending_ is set before the eventfd is
    // written.
    if (is_ending_) return;
    has_output = !output_.empty();
  }
  const int16_t events = has_output ? POLLIN | POLLOUT : POLLIN;
  pollfd polled[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                     {.fd = socket_.get(), .events = events, .revents = 0}};
  poll(polled, 2, PollTimeout(std::min(next_beat, heard_ + options_.silence)));
  // Resets the eventfd; its value does not matter.
  eventfd_t count = 0;
  eventfd_read(wake_.get(), &count);
}

bool JobWatch::Read() {
  char bytes[1 << 12];
  while (true) {
    const ssize_t n = recv(socket_.get(), bytes, sizeof(bytes), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      LoseServer(n < 0 && IsSilence(errno) ? "does not answer" : "is gone");
      return false;
    }
    heard_ = SteadyNow();
    input_.append(bytes, static_cast<size_t>(n));
    absl::StatusOr<std::optional<StoreFrame>> frame = TakeStoreFrame(input_);
    for (; frame.ok() && frame->has_value(); frame = TakeStoreFrame(input_)) Handle(**frame);
    if (!frame.ok()) {
      LoseServer("sent a message that is not a store's");
      return false;
    }
  }
}

void JobWatch::Handle(const StoreFrame& frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (frame.kind == kStoreEnd) {
    has_ended_ = true;
    // The first verdict stays. The text comes from another process, so it is made printable.
  } else if (frame.kind == kStoreLoss && verdict_.empty() && !has_ended_) {
    verdict_ = Printable(frame.value);
  }
  changed_.notify_all();
}

void JobWatch::LoseServer(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_ended_ || !verdict_.empty()) return;
  verdict_ = absl::StrCat("rank ", server_member_.rank, " (", Printable(server_member_.host), ", pid ",
                          server_member_.pid, "), which serves the job's store, ", what);
  changed_.notify_all();
}

void JobWatch::Write() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!output_.empty()) {
    const ssize_t n = send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // full; or broken, which Read detects
    output_.erase(0, static_cast<size_t>(n));
  }
}

void JobWatch::HangUp() {
  shutdown(socket_.get(), SHUT_WR);
  const absl::Time end = SteadyNow() + kHangUp;
  char unread[1 << 12];
  while (true) {
    const ssize_t n = recv(socket_.get(), unread, sizeof(unread), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    pollfd polled = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (n < 0 && poll(&polled, 1, PollTimeout(end)) <= 0) return;
    if (SteadyNow() >= end) return;
  }
}

}  // namespace fsdp
