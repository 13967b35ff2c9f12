// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/network_interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fsdp {
namespace {

// Any port is suitable: the socket is never written to.
constexpr char kPort[] = "9";

// "10.77.0.1"; empty for a family other than IP.
std::string TextOf(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

// Every IP address of an interface that is up, except loopback. An alias ("eth0:1") counts as its interface.
std::vector<NetworkInterface> AllInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<NetworkInterface> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    std::string address = TextOf(entry->ifa_addr);
    if (address.empty() || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const std::string name = entry->ifa_name;
    all.push_back({.name = name.substr(0, name.find(':')), .address = std::move(address)});
  }
  return all;
}

// The source address of packets to `host`, by the kernel's routes.
std::string SourceAddress(const std::string& host) {
  addrinfo hints = {};
  // One result per address, instead of one for each type of socket.
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), kPort, &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage source = {};
  socklen_t size = sizeof(source);
  // connect on a datagram socket sends nothing; it only binds the source address.
  const bool has_way = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&source), &size) == 0;
  if (fd >= 0) close(fd);
  return has_way ? TextOf(reinterpret_cast<const sockaddr*>(&source)) : "";
}

}  // namespace

NetworkInterface InterfaceTowards(const std::string& host) {
  const std::string source = SourceAddress(host);
  for (const NetworkInterface& interface : AllInterfaces()) {
    if (interface.address == source) return interface;
  }
  return {};
}

std::string DescribeNetworks(std::string_view devices) {
  std::vector<std::string> names = absl::StrSplit(std::string(devices), ',', absl::SkipEmpty());
  if (devices == "all") names.clear();
  const bool all = names.empty();
  std::vector<std::string> texts;
  for (const NetworkInterface& interface : AllInterfaces()) {
    const auto name = std::find(names.begin(), names.end(), interface.name);
    const bool is_link_local = interface.address.find('%') != std::string::npos;  // every IPv6 interface has one
    if (is_link_local || (!all && name == names.end())) continue;
    texts.push_back(absl::StrCat(interface.name, " ", interface.address));
  }
  // A name without an address, such as "mlx5_0:1", is a device of UCX that the kernel does not list as an interface.
  for (const std::string& name : names) {
    const auto is_of = [&](const std::string& text) { return text.compare(0, name.size() + 1, name + " ") == 0; };
    if (std::none_of(texts.begin(), texts.end(), is_of)) texts.push_back(name);
  }
  return texts.empty() ? "none" : absl::StrJoin(texts, ", ");
}

}  // namespace fsdp
