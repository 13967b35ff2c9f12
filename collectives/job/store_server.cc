// SPDX-License-Identifier: Apache-2.0
//
// A single thread runs a single poll loop, and no request blocks it. A Get whose key is not set becomes the
// connection's Wait, and the loop goes on. Life of a connection:
//
//   accepted --(hello accepted: rank is set)--> member --(kLeave)--> left --(end)--> dropped
//       |                                          |
//       +--(violates the protocol, or too          +--(end without kLeave)--> dropped, gone_rank_ = its rank:
//           many strangers)--> dropped                 from now on every unsatisfied Wait fails
//
// A dead rank is noticed as fast as the kernel closes its sockets: at once for a process that ended, never for one that
// is stopped or behind a cut cable; for those, the deadlines of the waits remain.
//
// Each turn reads all connections, then accepts, then answers waits until no more answers follow, then writes. A
// dropped connection thus ends other connections' waits in the same turn.
#include "fsdp/collectives/job/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// Bounds of what clients can make the server hold: the bytes of all keys and values, and the connections in excess of
// the job's ranks.
constexpr size_t kMaxTotalBytes = 256 << 20;
constexpr size_t kMaxStrangers = 64;

StoreFrame Error(absl::StatusCode code, std::string message) {
  return {.kind = static_cast<uint32_t>(code), .value = std::move(message)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(std::vector<FileDescriptor> listeners,
                                                                StoreMember self) {
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.ok()) {
    return absl::ResourceExhaustedError("store: no descriptor left for its server");
  }
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(listeners), std::move(stop), std::move(self)));
  server->thread_ = std::thread([serving = server.get()] { serving->Serve(); });
  return server;
}

StoreServer::StoreServer(std::vector<FileDescriptor> listeners, FileDescriptor stop, StoreMember self)
    : listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      self_(std::move(self)),
      seen_ranks_(static_cast<size_t>(self_.world_size)) {}

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
      return;
    }
    // Connections before listeners: `polled` has the connections in the order of the list. Reading takes them one by
    // one, so it can drop some; accepting first could drop one that is still to be read.
    ReadFrom(absl::MakeConstSpan(polled).subspan(1 + listeners_.size()));
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents != 0) {
        Accept(listeners_[i].get());
      }
    }
    while (AnswerWaits()) {
    }
    WriteAll();
  }
}

// The eventfd, the listeners, the connections.
std::vector<pollfd> StoreServer::Poll() const {
  std::vector<pollfd> polled = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const FileDescriptor& listener : listeners_) {
    polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  }
  for (const Connection& connection : connections_) {
    const int16_t events = connection.output.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back({.fd = connection.socket.get(), .events = events, .revents = 0});
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
    if (!Write(*connection)) {
      Drop(connection);
    }
  }
}

// Beyond the limit the oldest connection without a rank makes room, so that strangers cannot keep ranks out.
void StoreServer::Accept(int listener) {
  FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.ok() || !SameUser(socket.get())) {
    return;
  }
  if (connections_.size() >= self_.world_size + kMaxStrangers) {
    connections_.erase(std::find_if(connections_.begin(), connections_.end(),
                                    [](const Connection& connection) { return connection.rank < 0; }));
  }
  connections_.push_back({.socket = std::move(socket)});
}

bool StoreServer::Read(Connection& connection) {
  char bytes[1 << 16];
  const ssize_t n = recv(connection.socket.get(), bytes, sizeof(bytes), 0);
  if (n <= 0) {
    return n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  connection.input.append(bytes, static_cast<size_t>(n));
  return HandleInput(connection);
}

// Handles the complete frames in `input`, up to one that has to wait. A client sends its next request only after a
// reply, so more input than one frame is a violation of the protocol.
bool StoreServer::HandleInput(Connection& connection) {
  while (!connection.wait.has_value()) {
    const absl::StatusOr<std::optional<StoreFrame>> request = TakeStoreFrame(connection.input);
    if (!request.ok()) {
      return false;
    }
    if (!request->has_value()) {
      return true;
    }
    const StoreFrame& frame = **request;
    if (frame.kind == static_cast<uint32_t>(StoreRequest::kGet) && connection.rank >= 0) {
      const absl::Time deadline =
          frame.number < 0 ? absl::InfiniteFuture() : absl::Now() + absl::Milliseconds(frame.number);
      connection.wait = {.key = frame.key, .deadline = deadline};
    } else {
      connection.output += EncodeStoreFrame(Answer(connection, frame));
    }
  }
  return connection.input.size() <= kStoreHeaderBytes + kMaxStoreKeyBytes + kMaxStoreValueBytes;
}

StoreFrame StoreServer::Answer(Connection& connection, const StoreFrame& request) {
  if (request.kind == static_cast<uint32_t>(StoreRequest::kHello)) {
    return AnswerHello(connection, request);
  }
  if (request.kind == static_cast<uint32_t>(StoreRequest::kWho)) {
    return self_.ToFrame(/*kind=*/0);
  }
  if (connection.rank < 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "the first request must be a hello");
  }
  switch (static_cast<StoreRequest>(request.kind)) {
    case StoreRequest::kSet:
      return AnswerSet(request);
    case StoreRequest::kAdd:
      return AnswerAdd(request);
    case StoreRequest::kLeave:
      return AnswerLeave(connection);
    default:
      return Error(absl::StatusCode::kInvalidArgument, absl::StrCat("unknown request ", request.kind));
  }
}

// The job's name comes first: whoever asks at a port of another job must learn that, and not that it has a wrong world
// size.
StoreFrame StoreServer::AnswerHello(Connection& connection, const StoreFrame& request) {
  const absl::StatusOr<StoreMember> client = StoreMember::FromFrame(request);
  if (!client.ok()) {
    return Error(client.status().code(), std::string(client.status().message()));
  }
  if (client->job != self_.job) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat("this is job \"", self_.job, "\" (", self_.ToString(), "), not \"", client->job, "\""));
  }
  if (client->world_size != self_.world_size) {
    return Error(absl::StatusCode::kInvalidArgument, absl::StrCat("rank 0 has world size ", self_.world_size, ", rank ",
                                                                  client->rank, " has ", client->world_size));
  }
  if (client->rank >= self_.world_size || connection.rank >= 0) {
    return Error(absl::StatusCode::kFailedPrecondition, absl::StrCat("rank ", client->rank, " is not expected"));
  }
  std::optional<StoreMember>& seen = seen_ranks_[client->rank];
  if (seen.has_value()) {
    // The same process comes again when it forms its group anew before rank 0 has closed this store.
    return Error(
        seen->IsSameProcess(*client) ? absl::StatusCode::kUnavailable : absl::StatusCode::kAlreadyExists,
        absl::StrCat("rank ", client->rank, " is here already: ", seen->ToString(), ", and not ", client->ToString()));
  }
  connection.rank = client->rank;
  seen = *client;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++seen_;
  return self_.ToFrame(/*kind=*/0);
}

StoreFrame StoreServer::AnswerSet(const StoreFrame& request) {
  const auto [it, is_new] = values_.try_emplace(request.key);
  const size_t before = is_new ? 0 : request.key.size() + it->second.size();
  const size_t after = request.key.size() + request.value.size();
  if (value_bytes_ - before + after > kMaxTotalBytes) {
    if (is_new) {
      values_.erase(it);
    }
    return Error(absl::StatusCode::kResourceExhausted, absl::StrCat("full: ", value_bytes_, " bytes"));
  }
  it->second = request.value;
  value_bytes_ += after - before;
  return {};
}

StoreFrame StoreServer::AnswerAdd(const StoreFrame& request) {
  int64_t number = 0;
  if (const auto it = values_.find(request.key); it != values_.end() && !absl::SimpleAtoi(it->second, &number)) {
    return Error(absl::StatusCode::kInvalidArgument, absl::StrCat("\"", request.key, "\" is not a number"));
  }
  const int64_t sum = static_cast<int64_t>(static_cast<uint64_t>(number) + static_cast<uint64_t>(request.number));
  StoreFrame reply = AnswerSet({.key = request.key, .value = absl::StrCat(sum)});
  reply.number = sum;
  return reply;
}

StoreFrame StoreServer::AnswerLeave(Connection& connection) {
  if (!connection.has_left) {
    connection.has_left = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++left_;
    changed_.notify_all();
  }
  return {};
}

// Answers the waits that are over. Returns true if requests that had queued up behind them were handled: those may end
// waits that this pass has looked at already.
bool StoreServer::AnswerWaits() {
  bool more = false;
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    const std::optional<StoreFrame> reply = ReplyToWait(*connection);
    if (!reply.has_value()) {
      continue;
    }
    connection->wait.reset();
    connection->output += EncodeStoreFrame(*reply);
    more |= !connection->input.empty();
    if (!HandleInput(*connection)) {
      Drop(connection);
    }
  }
  return more;
}

std::optional<StoreFrame> StoreServer::ReplyToWait(const Connection& connection) const {
  if (!connection.wait.has_value()) {
    return std::nullopt;
  }
  const Wait& wait = *connection.wait;
  if (const auto value = values_.find(wait.key); value != values_.end()) {
    return StoreFrame{.value = value->second};
  }
  if (const int gone = GoneRank(); gone >= 0) {
    return Error(absl::StatusCode::kUnavailable, absl::StrCat("rank ", gone, " of ", self_.world_size, " has gone"));
  }
  if (absl::Now() >= wait.deadline) {
    return Error(absl::StatusCode::kDeadlineExceeded, absl::StrCat("\"", wait.key, "\" is not set"));
  }
  return std::nullopt;
}

bool StoreServer::Write(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t n = send(connection.socket.get(), connection.output.data(), connection.output.size(), MSG_NOSIGNAL);
    if (n < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    connection.output.erase(0, static_cast<size_t>(n));
  }
  return true;
}

// An end without kLeave is how the death of a rank's process shows itself.
void StoreServer::Drop(std::list<Connection>::iterator connection) {
  if (connection->rank >= 0 && !connection->has_left) {
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
  } else if (!changed_.wait_until(lock, absl::ToChronoTime(deadline), done)) {
    return absl::DeadlineExceededError(absl::StrCat("store: ", left_, " of ", seen_, " ranks have left"));
  }
  return gone_rank_ < 0
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("store: rank ", gone_rank_, " of ", self_.world_size, " has gone"));
}

absl::Time StoreServer::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Connection& connection : connections_) {
    if (connection.wait.has_value()) {
      next = std::min(next, connection.wait->deadline);
    }
  }
  return next;
}

}  // namespace fsdp
