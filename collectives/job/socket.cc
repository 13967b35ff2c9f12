// SPDX-License-Identifier: Apache-2.0
//
// All sockets are non-blocking and close-on-exec. A blocking call would ignore the deadline; so send, recv and connect
// are tried first, and if they would block, AwaitReady polls until the deadline.
//
// Errors: EAGAIN and EINPROGRESS wait, EINTR retries, and everything else is kUnavailable with its text: no listener
// (ECONNREFUSED), a killed peer (ECONNRESET, EPIPE), an address in use (EADDRINUSE). The callers retry all of these
// until their deadline. MSG_NOSIGNAL prevents SIGPIPE in this process when a peer dies.
#include "fsdp/collectives/job/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const std::string service = absl::StrCat(port);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve \"", host, "\": ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

absl::Status SocketError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Waits until the socket is ready for `events`.
absl::Status AwaitReady(int fd, int16_t events, absl::Time deadline) {
  pollfd ready = {.fd = fd, .events = events, .revents = 0};
  while (true) {
    const int n = poll(&ready, 1, PollTimeout(deadline));
    if (n > 0) {
      return absl::OkStatus();
    }
    if (n == 0 && SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("no answer in time");
    }
    if (n < 0 && errno != EINTR) {
      return SocketError("cannot wait for a socket");
    }
  }
}

// A connect that was in progress has ended when the socket is writable; SO_ERROR then has its result.
absl::Status FinishConnecting(int fd, absl::Time deadline) {
  FSDP_RETURN_IF_ERROR(AwaitReady(fd, POLLOUT, deadline));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0 ? absl::OkStatus() : SocketError("cannot connect");
}

void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    // The second test is for 127.0.0.0/8 in IPv4-mapped form, ::ffff:127.x.y.z.
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

// kNotFound if the address is not an address of this machine.
absl::StatusOr<FileDescriptor> ListenAt(const addrinfo& address, const std::string& name) {
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Connections of an earlier job in TIME_WAIT would otherwise block the port for a minute.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // do not rely on the system's default; no effect on IPv4
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  // Saved here, because StrCat and strerror may change errno.
  const bool is_elsewhere = errno == EADDRNOTAVAIL;
  const absl::Status status = SocketError(absl::StrCat("cannot listen on ", name));
  return is_elsewhere ? absl::NotFoundError(status.message()) : status;
}

struct LocalAddress {
  sockaddr_un address = {};
  socklen_t size = 0;
};

// The leading zero byte of sun_path makes the name abstract (unix(7)); the length counts, not a terminating zero.
absl::StatusOr<LocalAddress> AbstractAddress(const std::string& name) {
  LocalAddress local;
  // sun_path has 108 bytes, one of which is the leading zero.
  if (name.size() > 100) {
    return absl::InvalidArgumentError(absl::StrCat("socket name of ", name.size(), " bytes, at most 100"));
  }
  local.address.sun_family = AF_UNIX;
  std::memcpy(local.address.sun_path + 1, name.data(), name.size());
  local.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return local;
}

}  // namespace

int PollTimeout(absl::Time deadline) {
  const int64_t ms = absl::ToInt64Milliseconds(deadline - SteadyNow() + absl::Microseconds(999));
  return deadline == absl::InfiniteFuture()
             ? -1
             : static_cast<int>(std::clamp<int64_t>(ms, 0, std::numeric_limits<int>::max()));
}

absl::StatusOr<FileDescriptor> ListenTcp(const std::string& host, int port) {
  FSDP_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, port, AI_PASSIVE));
  absl::StatusOr<FileDescriptor> fd = ListenAt(*addresses, absl::StrCat(host, ":", port));
  if (absl::IsNotFound(fd.status())) {
    return absl::UnavailableError(fd.status().message());
  }
  return fd;
}

// "::" accepts IPv4 connections too; a kernel without IPv6 does not have it.
absl::StatusOr<FileDescriptor> ListenTcpForHosts(const std::string& host, int port) {
  FSDP_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, port, AI_PASSIVE));
  if (!IsLoopback(addresses->ai_addr)) {
    absl::StatusOr<FileDescriptor> fd = ListenAt(*addresses, absl::StrCat(host, ":", port));
    if (!absl::IsNotFound(fd.status())) return fd;
  }
  absl::StatusOr<FileDescriptor> any = ListenTcp("::", port);
  return any.ok() ? std::move(any) : ListenTcp("0.0.0.0", port);
}

absl::StatusOr<FileDescriptor> ListenLocal(const std::string& name) {
  FSDP_ASSIGN_OR_RETURN(const LocalAddress local, AbstractAddress(name));
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&local.address), local.size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return SocketError(absl::StrCat("cannot listen on @", name));
  }
  return fd;
}

absl::StatusOr<int> ListeningPort(int fd) {
  // SO_ACCEPTCONN is checked first: the number may belong to any file if the variable with it was inherited.
  int listens = 0;
  socklen_t size = sizeof(listens);
  sockaddr_storage address = {};
  socklen_t address_size = sizeof(address);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not a listening socket"));
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not a TCP socket"));
}

absl::StatusOr<std::string> LocalAddressOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = {};
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 || address.ss_family == AF_UNIX ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not a TCP socket"));
  }
  // A socket bound to "::" reports IPv4 peers in mapped form; both forms must compare equal.
  return std::string(absl::StripPrefix(host, "::ffff:"));
}

bool IsAnyAddress(const std::string& address) { return address == "::" || address == "0.0.0.0"; }

absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, absl::Time deadline) {
  FSDP_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, port, 0));
  absl::Status status;
  // A host name may have addresses of both families, of which only one has a listener.
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    FileDescriptor fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
      status = SocketError(absl::StrCat("cannot connect to ", host, ":", port));
      continue;
    }
    status = FinishConnecting(fd.get(), deadline);
    if (status.ok()) {
      // Requests and replies are small, and Nagle's algorithm would delay each by an acknowledgement.
      SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      EndWhenSilent(fd.get());
      return fd;
    }
  }
  return status;
}

absl::StatusOr<FileDescriptor> ConnectLocal(const std::string& name) {
  FSDP_ASSIGN_OR_RETURN(const LocalAddress local, AbstractAddress(name));
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&local.address), local.size) != 0) {
    return SocketError(absl::StrCat("cannot connect to @", name));
  }
  return fd;
}

void EndWhenSilent(int fd) {
  // 5 + 3 * 2 = 11 seconds until an idle connection ends.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);  // seconds
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);  // milliseconds
}

bool IsSilence(int error) { return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH; }

bool SameUser(int fd) {
  sockaddr_storage address = {};
  socklen_t address_size = sizeof(address);
  // SO_PEERCRED has a meaning for local sockets only, so the family is needed first.
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size);
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return address.ss_family != AF_UNIX ||
         (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid());
}

absl::Status SendAll(int fd, absl::Span<const char> bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      FSDP_RETURN_IF_ERROR(AwaitReady(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return SocketError("cannot send");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, absl::Span<char> bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    // 0 means the end of the stream only because `bytes` is not empty.
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0) {
      return absl::UnavailableError("the connection was closed");
    } else if (errno == EAGAIN) {
      FSDP_RETURN_IF_ERROR(AwaitReady(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return SocketError("cannot receive");
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
