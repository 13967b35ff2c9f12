// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/conformance/socket_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/net/reduction_route.h"

namespace fsdp {
namespace {

constexpr absl::Duration kConnecting = absl::Seconds(20);
constexpr absl::Duration kPatience = absl::Minutes(5);  // for a message

// The size of a system call, so that both directions get their turns.
constexpr int64_t kPieceBytes = 1 << 20;

// A direction of an exchange.
struct Flow {
  int fd = -1;
  // `memory` is used as a ring of `room` bytes: the transfer may be longer.
  char* memory = nullptr;
  int64_t room = 0;
  int64_t left = 0;
  int64_t done = 0;
};

// Transfers as many bytes as the socket permits now; 0 if the caller must poll.
absl::StatusOr<int64_t> Advance(Flow& flow, bool is_out) {
  if (flow.left == 0) return 0;
  const int64_t at = flow.done % flow.room;
  const auto piece = static_cast<size_t>(std::min({flow.left, flow.room - at, kPieceBytes}));
  const ssize_t n = is_out ? send(flow.fd, flow.memory + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(flow.fd, flow.memory + at, piece, MSG_DONTWAIT);
  // 0 also for a signal: the caller polls again, which costs one system call.
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return absl::UnavailableError(absl::StrCat("the wire: ", n == 0 ? "closed" : std::strerror(errno)));
  flow.left -= n;
  flow.done += n;
  return n;
}

absl::StatusOr<FileDescriptor> AcceptBy(int listener, absl::Time deadline) {
  while (true) {
    FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.ok()) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // as ConnectTcp does
      return fd;
    }
    pollfd ready = {.fd = listener, .events = POLLIN, .revents = 0};
    if (absl::Now() >= deadline) return absl::DeadlineExceededError("the wire: no connection arrived");
    poll(&ready, 1, PollTimeout(deadline));
  }
}

}  // namespace

double LinkBytes(CollectiveOp op, DType dtype, double bytes, const HostLayout& layout) {
  const int hosts = layout.hosts();
  const double others = static_cast<double>(hosts - 1) / hosts;
  const ReductionRoute route = ChooseReductionRoute(hosts, layout.ranks_per_host(), dtype);
  const double reduced = BusiestLinkShare(route, hosts, layout.ranks_per_host(), dtype);
  switch (op) {
    case CollectiveOp::kAllGather:
      return bytes * others;
    case CollectiveOp::kReduceScatter:
      return bytes * reduced;
    // An all_gather follows the reduction. On the flat route it is flat too, and carries as much.
    case CollectiveOp::kAllReduce:
      return bytes * (reduced + (route == ReductionRoute::kFlat ? reduced : others));
    case CollectiveOp::kBroadcast:
      return bytes * (hosts - 1);
    default:
      return 0;
  }
}

absl::StatusOr<std::unique_ptr<SocketWire>> SocketWire::Create(ProcessGroup& group, HostLayout layout,
                                                               const std::string& master_addr) {
  if (layout.hosts() < 2 || !layout.is_regular()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a wire: the ranks are on ", layout.ToString(), ", expected several with equally many"));
  }
  std::unique_ptr<SocketWire> wire(new SocketWire(std::move(layout), group.rank()));
  absl::StatusOr<FileDescriptor> listener = FileDescriptor();
  absl::StatusOr<int> port = 0;
  if (group.rank() == wire->end(0)) {
    listener = ListenTcpForHosts(master_addr, 0);
    port = listener.ok() ? ListeningPort(listener->get()) : listener.status();
  }
  // The port is known only after the listener exists, so ranks agree on its success before the address is exchanged.
  // The other ranks take part in both gathers, so that an error of an end is an error of all.
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, port.status()));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> ports, group.AllGatherObject(absl::StrCat(*port)));
  absl::Status status;
  if (group.rank() == wire->end(0)) status = wire->Accept(listener->get());
  int number = 0;
  if (group.rank() == wire->end(1) && absl::SimpleAtoi(ports[wire->end(0)], &number)) {
    status = wire->Connect(master_addr, number);
  }
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, status));
  return wire;
}

// Connections arrive in the order in which the other end makes them: the first is the one from host 0 to host 1.
absl::Status SocketWire::Accept(int listener) {
  FSDP_ASSIGN_OR_RETURN(out_, AcceptBy(listener, absl::Now() + kConnecting));
  FSDP_ASSIGN_OR_RETURN(in_, AcceptBy(listener, absl::Now() + kConnecting));
  return absl::OkStatus();
}

absl::Status SocketWire::Connect(const std::string& master_addr, int port) {
  FSDP_ASSIGN_OR_RETURN(in_, ConnectTcp(master_addr, port, absl::Now() + kConnecting));
  FSDP_ASSIGN_OR_RETURN(out_, ConnectTcp(master_addr, port, absl::Now() + kConnecting));
  return absl::OkStatus();
}

absl::Status SocketWire::Exchange(absl::Span<char> source, absl::Span<char> destination, int64_t nbytes) {
  if (!is_end()) return absl::OkStatus();
  Flow out = {out_.get(), source.data(), static_cast<int64_t>(source.size()), nbytes};
  Flow in = {in_.get(), destination.data(), static_cast<int64_t>(destination.size()), nbytes};
  while (out.left > 0 || in.left > 0) {
    FSDP_ASSIGN_OR_RETURN(const int64_t sent, Advance(out, true));
    FSDP_ASSIGN_OR_RETURN(const int64_t received, Advance(in, false));
    // Polls only if neither direction made progress, and only for directions with bytes left.
    if (sent + received > 0) continue;
    pollfd fds[] = {{.fd = out.left > 0 ? out.fd : -1, .events = POLLOUT, .revents = 0},
                    {.fd = in.left > 0 ? in.fd : -1, .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 0) {
      return absl::DeadlineExceededError("the wire carries nothing");
    }
  }
  return absl::OkStatus();
}

// Uses the connection from host 0 to host 1 in both directions.
absl::Status SocketWire::PingPong(absl::Span<char> memory) {
  const absl::Time deadline = absl::Now() + kPatience;
  if (rank_ == end(0)) {
    FSDP_RETURN_IF_ERROR(SendAll(out_.get(), memory, deadline));
    return ReceiveAll(out_.get(), memory, deadline);
  }
  if (rank_ == end(1)) {
    FSDP_RETURN_IF_ERROR(ReceiveAll(in_.get(), memory, deadline));
    return SendAll(in_.get(), memory, deadline);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
