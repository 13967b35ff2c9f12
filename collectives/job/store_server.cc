// SPDX-License-Identifier: Apache-2.0
//
// A single thread runs a single poll loop, and no request blocks it. A Get whose key is not set, or a gather that lacks
// blobs, becomes the connection's Wait, and the loop continues. Life of a connection:
//
//   accepted --(hello accepted: rank is set)--> member --(kLeave)--> left --(end)--> dropped
//       |                                          |
//       +--(violates the protocol, or too          +--(end without kLeave)--> dropped, gone_rank_ = its rank:
//           many strangers)--> dropped                 from now on every unsatisfied Wait fails
//
// A member that watches exchanges heartbeats from then on. The kernel closes the sockets of a process that ended, so
// its death is noticed immediately. A rank behind a cut cable is noticed by the kernel (EndWhenSilent) or by the lack
// of heartbeats; a stopped process only by the lack of heartbeats.
//
// Each turn reads all connections, then accepts, then answers waits until no more answers follow, then sends to the
// connections that watch, then writes. A dropped connection thus ends other connections' waits in the same turn.
// Reading comes before any check of silence, so that a late turn finds the heartbeats that have arrived meanwhile.
#include "fsdp/collectives/job/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// Bounds the connections in excess of the job's ranks. StoreContents bounds their bytes.
constexpr size_t kMaxStrangers = 64;

// How long the server continues for ranks that have neither left nor begun to watch, after rank 0 has left.
constexpr absl::Duration kStragglers = absl::Seconds(5);

// How long the end of the server waits for connections that watch to be closed by their clients.
constexpr absl::Duration kFarewell = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(std::vector<FileDescriptor> listeners,
                                                                StoreMember self) {
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  FileDescriptor spare(eventfd(0, EFD_CLOEXEC));
  if (!stop.ok() || !spare.ok()) {
    return absl::ResourceExhaustedError("store: no descriptor left for its server");
  }
  std::unique_ptr<StoreServer> server(
      new StoreServer(std::move(listeners), std::move(stop), std::move(spare), std::move(self)));
  server->thread_ = std::thread([serving = server.get()] { serving->Serve(); });
  return server;
}

StoreServer::StoreServer(std::vector<FileDescriptor> listeners, FileDescriptor stop, FileDescriptor spare,
                         StoreMember self)
    : listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      self_(std::move(self)),
      spare_(std::move(spare)),
      contents_(self_.world_size),
      seen_ranks_(static_cast<size_t>(self_.world_size)),
      roster_(self_.world_size) {}

StoreServer::~StoreServer() {
  if (thread_.joinable()) {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
}

void StoreServer::Serve() {
  while (true) {
    const std::vector<pollfd> polled = Poll();
    if (polled[0].revents != 0) {
      end_ = std::min(end_, SteadyNow() + kStragglers);
    }
    if (end_ != absl::InfiniteFuture() && (!HasStragglers() || SteadyNow() >= end_)) {
      SayFarewell();
      return;
    }
    // Connections before listeners: `polled` has the connections in the order of the list. Reading handles them one by
    // one, so it can drop some; accepting first could drop one that is still to be read.
    ReadFrom(absl::MakeConstSpan(polled).subspan(1 + listeners_.size()));
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents != 0) {
        Accept(listeners_[i].get());
      }
    }
    while (AnswerWaits()) {
    }
    contents_.ForgetCompleteGathers();
    TellWatching();
    WriteAll();
  }
}

// In this order: the eventfd, the listeners, the connections.
std::vector<pollfd> StoreServer::Poll() const {
  const int stop = end_ == absl::InfiniteFuture() ? stop_.get() : -1;  // poll ignores -1
  std::vector<pollfd> polled = {{.fd = stop, .events = POLLIN, .revents = 0}};
  for (const FileDescriptor& listener : listeners_) {
    polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  }
  for (const Connection& connection : connections_) {
    const int16_t events = connection.stream.has_output() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = connection.stream.fd(), .events = events, .revents = 0});
  }
  if (poll(polled.data(), polled.size(), PollTimeout(NextDeadline())) <= 0) {
    for (pollfd& entry : polled) {
      entry.revents = 0;
    }
  }
  return polled;
}

void StoreServer::ReadFrom(absl::Span<const pollfd> polled) {
  auto next = connections_.begin();
  for (const pollfd& entry : polled) {
    const auto connection = next++;
    if ((entry.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !Read(*connection)) {
      Drop(connection);
    }
  }
}

void StoreServer::WriteAll() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    if (!connection->stream.Flush()) {
      Drop(connection);
    }
  }
}

// Beyond the limit the oldest connection without a rank is closed, so that strangers cannot keep ranks out.
void StoreServer::Accept(int listener) {
  FileDescriptor socket = TakeConnection(listener);
  if (!socket.ok() || !SameUser(socket.get())) {
    return;
  }
  // There is a stranger: at most world_size connections have a rank, because seen_ranks_ accepts each rank once.
  if (connections_.size() >= self_.world_size + kMaxStrangers) DropStranger();
  EndWhenSilent(socket.get());
  connections_.push_back({.stream = StoreConnection(std::move(socket))});
}

// Without a descriptor the connection would stay in the listener's queue, for which poll does not wait. It gets a
// stranger's; without a stranger, the spare one serves to close it, and its rank tries again.
FileDescriptor StoreServer::TakeConnection(int listener) {
  const auto accept = [listener] {
    return FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  };
  FileDescriptor socket = accept();
  if (socket.ok() || (errno != EMFILE && errno != ENFILE)) return socket;
  if (DropStranger()) return accept();
  spare_.Close();
  accept();
  spare_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  return {};
}

bool StoreServer::DropStranger() {
  const auto stranger = std::find_if(connections_.begin(), connections_.end(),
                                     [](const Connection& connection) { return connection.rank < 0; });
  if (stranger == connections_.end()) return false;
  connections_.erase(stranger);
  return true;
}

bool StoreServer::Read(Connection& connection) { return connection.stream.Receive() && HandleInput(connection); }

// Handles the complete frames, up to one that has to wait. A client sends its next request only after a reply, so more
// input than one frame violates the protocol.
bool StoreServer::HandleInput(Connection& connection) {
  while (!connection.wait.has_value()) {
    const absl::StatusOr<std::optional<StoreFrame>> request = connection.stream.TakeFrame();
    if (!request.ok()) {
      return false;
    }
    if (!request->has_value()) {
      return true;
    }
    const StoreFrame& frame = **request;
    if (connection.is_watching()) {
      HandleWatching(connection, frame);
    } else if (!StartWait(connection, frame)) {
      connection.stream.Send(Answer(connection, frame));
    }
  }
  return !connection.stream.holds_too_much();
}

void StoreServer::HandleWatching(Connection& connection, const StoreFrame& frame) {
  roster_.Hear(connection.rank, SteadyNow());
  if (frame.kind == static_cast<uint32_t>(StoreRequest::kGiveUp)) {
    roster_.GiveUp(connection.rank, frame.value);
  } else if (frame.kind == static_cast<uint32_t>(StoreRequest::kLeave)) {
    AnswerLeave(connection);
  }
}

// A turn that is very late, after a pause of the whole machine for example, precedes the heartbeats that the other
// ranks, which have paused too, are about to send.
void StoreServer::TellWatching() {
  const absl::Time now = SteadyNow();
  if (now - turn_ >= shortest_silence_ / 2) roster_.Forgive(now);
  turn_ = now;
  roster_.Look(now);
  for (Connection& connection : connections_) {
    if (!connection.is_watching()) continue;
    if (!connection.was_told && !roster_.verdict().empty()) {
      connection.was_told = true;
      connection.stream.Send({.kind = kStoreLoss, .value = roster_.verdict()});
    }
    if (now >= connection.next_beat) {
      connection.next_beat = now + connection.interval;
      // A client that does not read must not make the server queue more and more.
      if (!connection.stream.has_output()) connection.stream.Send({.kind = kStoreBeat});
    }
  }
}

// Rank 0 may be done with the job before another rank has begun to watch. That rank must learn that rank 0 has left,
// and not that it is gone.
bool StoreServer::HasStragglers() const {
  return self_has_left_ && std::any_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
           return connection.rank >= 0 && !connection.has_left && !connection.is_watching();
         });
}

// Shutting down the server's side only is not enough: closing a socket that has unread heartbeats resets the
// connection, and data that the client has not read yet is lost. So the server waits until each client closes first.
void StoreServer::SayFarewell() {
  for (Connection& connection : connections_) {
    if (connection.is_watching() && !connection.was_told && self_has_left_) connection.stream.Send({.kind = kStoreEnd});
  }
  WriteAll();
  connections_.remove_if([](const Connection& connection) { return !connection.is_watching(); });
  for (const Connection& connection : connections_) shutdown(connection.stream.fd(), SHUT_WR);
  const absl::Time end = SteadyNow() + kFarewell;
  while (!connections_.empty() && SteadyNow() < end) {
    std::vector<pollfd> polled;
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.stream.fd(), .events = POLLIN, .revents = 0});
    }
    if (poll(polled.data(), polled.size(), PollTimeout(end)) <= 0) continue;
    auto entry = polled.begin();
    connections_.remove_if([&entry](const Connection& connection) {
      char unread[1 << 12];
      return (entry++)->revents != 0 && recv(connection.stream.fd(), unread, sizeof(unread), 0) <= 0;
    });
  }
}

// A connection that ends without kLeave is how the death of a rank's process appears.
void StoreServer::Drop(std::list<Connection>::iterator connection) {
  if (connection->rank >= 0 && !connection->has_left) {
    roster_.Lose(connection->rank, connection->stream.is_silent(), SteadyNow());
    const std::lock_guard<std::mutex> lock(mutex_);
    gone_rank_ = gone_rank_ < 0 ? connection->rank : gone_rank_;
    changed_.notify_all();
  }
  connections_.erase(connection);
}

int StoreServer::GoneRank() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gone_rank_;
}

absl::Status StoreServer::AwaitLeave(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [this] { return left_ == seen_ || gone_rank_ >= 0; };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, done);
  } else if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(deadline - SteadyNow()), done)) {
    return absl::DeadlineExceededError(absl::StrCat("store: ", left_, " of ", seen_, " ranks have left"));
  }
  return gone_rank_ < 0
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("store: rank ", gone_rank_, " of ", self_.world_size, " has gone"));
}

absl::Time StoreServer::NextDeadline() const {
  absl::Time next = std::min(end_, roster_.NextLook());
  for (const Connection& connection : connections_) {
    next = std::min(next, connection.next_beat);
    if (connection.wait.has_value()) {
      next = std::min(next, connection.wait->deadline);
    }
  }
  return next;
}

}  // namespace fsdp
