// SPDX-License-Identifier: Apache-2.0
//
// UCX offers no way to close a port and keep its connections. If its listening socket were closed or shut down, UCX
// would report errors and warnings; a filter that drops the packets of connections needs privileges. So an eventfd that
// is never readable takes the number of the socket, also in UCX's epoll set, and UCX closes it in the end. The kernel
// closes the socket, since no descriptor is left; accepted connections have sockets of their own.
//
// A connection that is in UCX's hands is ended by shutdown: UCX reads the end of the stream and closes the descriptor.
//
// When no descriptor is left, UCX closes its port, and a rank that has not connected yet never can: dropping surplus
// connections then is too late, and UCX's own thread accepts a thousand of them before this process can act.
#include "fsdp/collectives/net/worker_ports.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// For the open files and directories of a save by several threads.
constexpr int kReserve = 32;

// How long the kernel keeps a connection that sends nothing to itself (TCP_DEFER_ACCEPT): longer than ranks wait.
constexpr int kDeferSeconds = 3600;

// UCX's connections begin with a number of 8 bytes that says that they are UCX's.
constexpr uint64_t kFirstBytes = 8;

// Linux's values of tcp_info::tcpi_state; <netinet/tcp.h>, which names them, excludes <linux/tcp.h>.
constexpr int kEstablished = 1;
constexpr int kSynSent = 2;
constexpr int kListen = 10;

// Nullopt if `fd` is no TCP socket.
std::optional<tcp_info> TcpOf(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info;
}

using NameFunction = int (*)(int, sockaddr*, socklen_t*);

struct Endpoint {
  std::string host;  // the bytes of the address
  std::string port;  // in network order
};

// One end of a socket: `name` is getsockname or getpeername. IPv4 addresses have 4 bytes, also when mapped to IPv6.
Endpoint EndpointOf(int fd, NameFunction name) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const auto bytes = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return {.host = bytes(four.sin_addr), .port = bytes(four.sin_port)};
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  const std::string host = bytes(six.sin6_addr);
  return {.host = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? host.substr(12) : host, .port = bytes(six.sin6_port)};
}

std::string PlaceOf(int fd) {
  const Endpoint here = EndpointOf(fd, getsockname);
  return here.host + here.port;
}

// The event with which `fd` was added to the epoll set `epoll_fd`; nullopt if it is not in it, or that is no epoll set.
std::optional<epoll_event> EventOf(int epoll_fd, int fd) {
  std::ifstream members(absl::StrCat("/proc/self/fdinfo/", epoll_fd));  // proc(5)
  for (std::string line; std::getline(members, line);) {
    int member = -1;
    unsigned events = 0;
    unsigned long long data = 0;
    if (std::sscanf(line.c_str(), "tfd: %d events: %x data: %llx", &member, &events, &data) != 3) continue;
    if (member == fd) return epoll_event{.events = events, .data = {.u64 = data}};
  }
  return std::nullopt;
}

bool Has(std::string_view text, const std::string& part) { return text.find(part) != std::string_view::npos; }

}  // namespace

WorkerPorts::WorkerPorts() : descriptors_(opendir("/proc/self/fd"), closedir) {
  ForEachDescriptor([&](int fd) {
    const std::optional<tcp_info> tcp = TcpOf(fd);
    if (tcp.has_value() && tcp->tcpi_state == kListen) before_.push_back(fd);
  });
  for (int i = 0; i < kReserve; ++i) {
    FileDescriptor reserved(eventfd(0, EFD_CLOEXEC));
    if (reserved.ok()) reserve_.push_back(std::move(reserved));
  }
}

void WorkerPorts::Find(std::string_view address) {
  ForEachDescriptor([&](int fd) {
    const std::optional<tcp_info> tcp = TcpOf(fd);
    if (!tcp.has_value() || tcp->tcpi_state != kListen) return;
    const bool is_old = std::find(before_.begin(), before_.end(), fd) != before_.end();
    if (is_old || !Has(address, EndpointOf(fd, getsockname).port)) return;
    listeners_.push_back({.fd = fd, .place = PlaceOf(fd)});
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &kDeferSeconds, sizeof(kDeferSeconds));
  });
  ForEachDescriptor([&](int epoll_fd) {
    for (Listener& listener : listeners_) {
      const std::optional<epoll_event> event = EventOf(epoll_fd, listener.fd);
      if (!event.has_value()) continue;
      listener.epoll_fd = epoll_fd;
      listener.event = *event;
    }
  });
}

// A connection is accepted for certain when the other end has acknowledged its bytes.
bool WorkerPorts::IsConnecting(const std::vector<std::string>& addresses) const {
  bool is_connecting = false;
  ForEachDescriptor([&](int fd) {
    const std::optional<tcp_info> tcp = TcpOf(fd);
    if (!tcp.has_value() || is_connecting) return;
    is_connecting = tcp->tcpi_state == kSynSent;
    if (tcp->tcpi_state != kEstablished || tcp->tcpi_unacked == 0) return;
    const Endpoint peer = EndpointOf(fd, getpeername);
    for (const std::string& address : addresses) {
      is_connecting |= !peer.port.empty() && Has(address, peer.port) && Has(address, peer.host);
    }
  });
  return is_connecting;
}

void WorkerPorts::StopAccepting() {
  for (const Listener& listener : listeners_) epoll_ctl(listener.epoll_fd, EPOLL_CTL_DEL, listener.fd, nullptr);
}

void WorkerPorts::Close() {
  for (Listener& listener : listeners_) {
    if (listener.epoll_fd < 0 || reserve_.empty()) continue;
    dup3(reserve_[0].get(), listener.fd, O_CLOEXEC);
    epoll_ctl(listener.epoll_fd, EPOLL_CTL_ADD, listener.fd, &listener.event);
  }
}

int WorkerPorts::DropSilent() const {
  const auto is_silent = [this](int fd) {
    const std::optional<tcp_info> tcp = TcpOf(fd);
    return tcp.has_value() && tcp->tcpi_state != kListen && tcp->tcpi_bytes_received < kFirstBytes &&
           std::any_of(listeners_.begin(), listeners_.end(),
                       [place = PlaceOf(fd)](const Listener& listener) { return listener.place == place; });
  };
  int ended = 0;
  if (reserve_.size() < 2) return ended;
  const int copy = reserve_[0].get();
  ForEachDescriptor([&](int fd) {
    // A copy, because UCX may close `fd` here and another thread reuse its number. In the place of a reserved
    // descriptor, because no other may be left.
    if (!is_silent(fd) || dup3(fd, copy, O_CLOEXEC) < 0) return;
    if (is_silent(copy)) {
      shutdown(copy, SHUT_RDWR);
      ++ended;
    }
    dup3(reserve_[1].get(), copy, O_CLOEXEC);
  });
  return ended;
}

// The descriptors may change meanwhile.
void WorkerPorts::ForEachDescriptor(const std::function<void(int fd)>& function) const {
  if (descriptors_ == nullptr) return;
  rewinddir(descriptors_.get());
  while (const dirent* entry = readdir(descriptors_.get())) {
    if (entry->d_name[0] != '.') function(atoi(entry->d_name));
  }
}

}  // namespace fsdp
