// SPDX-License-Identifier: Apache-2.0
//
// ThreadNetwork: for tests, a network whose ranks are threads of one process, and which can simulate faults: a
// connection that breaks, a message that is cut short.
#ifndef FSDP_COLLECTIVES_NET_THREAD_TRANSPORT_H_
#define FSDP_COLLECTIVES_NET_THREAD_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/collectives/net/transport.h"

namespace fsdp {

// Thread-safe.
class ThreadNetwork {
 public:
  explicit ThreadNetwork(int size);
  ~ThreadNetwork();

  // The transport of rank `r`; call it once for each rank. The transport may outlive the network.
  std::unique_ptr<Transport> Join(int r);

  // From now on every other rank sees the connection to `r` broken, in this network and in its existing subgroups, and
  // receives nothing from it any more.
  void Lose(int r);

  // The last byte of the next message from one rank to another is lost.
  void CutNextMessage(int from, int to);

  // The bytes of messages, without notices, that ranks have sent to ranks of other hosts. `hosts`: the host of each
  // rank. Messages of subgroups do not count.
  int64_t BytesBetweenHosts(const std::vector<int>& hosts) const;

 private:
  class State;
  class Rank;

  const std::shared_ptr<State> state_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_THREAD_TRANSPORT_H_
