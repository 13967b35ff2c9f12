// SPDX-License-Identifier: Apache-2.0
//
// The network interfaces of this host, for hosts that send each other messages: the interface that leads to another
// host, and a description of the chosen interfaces for messages.
#ifndef FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_
#define FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_

#include <string>
#include <string_view>

namespace fsdp {

// The interface of this host that leads to another host.
struct NetworkInterface {
  std::string name;     // "eth0"
  std::string address;  // "10.77.0.1"
};

// The interface by which packets to `host`, a name or an address, leave; if it is this host itself, the interface that
// has the address. Empty if `host` is a loopback address, cannot be resolved, or cannot be reached. Sends only queries
// to the name server.
NetworkInterface InterfaceTowards(const std::string& host);

// "eth0 10.77.0.1, ib0 10.78.0.1": the interfaces that UCX_NET_DEVICES with this value names, without loopback; "" and
// "all" mean all interfaces that are up. Names without an IP address are kept unchanged.
std::string DescribeNetworks(std::string_view devices);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_
