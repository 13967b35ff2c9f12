// SPDX-License-Identifier: Apache-2.0
//
// The network interfaces of this host, as far as hosts that send each other messages choose among them: which one leads
// to another host, and what to tell people about those that were chosen.
#ifndef FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_
#define FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_

#include <string>
#include <string_view>

namespace fsdp {

// This host's end of its way to another one.
struct NetworkInterface {
  std::string name;     // "eth0"
  std::string address;  // "10.77.0.1"
};

// The interface that packets to `host`, a name or an address, leave by; if it is this host itself, the interface that
// has the address. Empty if `host` is a loopback address, cannot be resolved, or cannot be reached. Sends nothing but
// questions to the name server.
NetworkInterface InterfaceTowards(const std::string& host);

// "eth0 10.77.0.1, ib0 10.78.0.1": the interfaces that UCX_NET_DEVICES with this value names, but for loopback; "" and
// "all" are all of them that are up. Names without an IP address stand as they are.
std::string DescribeNetworks(std::string_view devices);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_NETWORK_INTERFACES_H_
