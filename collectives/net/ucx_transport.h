// SPDX-License-Identifier: Apache-2.0
//
// The transport between processes, on one host or several: UCX, over any network it finds; UCX_NET_DEVICES chooses
// among several. The .cc file begins with how ranks meet, ucx_exchange.cc with how messages are distinguished.
#ifndef FSDP_COLLECTIVES_NET_UCX_TRANSPORT_H_
#define FSDP_COLLECTIVES_NET_UCX_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

struct UcxTransportOptions {
  std::string place = {};  // of this rank, for the errors of others: "pid 12 on host-b"
  // The interface that leads to the other hosts, if known: used if TCP is the only network, unless UCX_NET_DEVICES is
  // set. Empty: UCX chooses.
  std::string interface = {};
  absl::Duration timeout = absl::Minutes(10);  // for the first messages between all ranks
  PeerWatch watch = nullptr;                   // polled during every wait, which ends with its verdict; null: none
};

// The transport of rank `rank` of `size` ranks, which all call this at the same time; `gather` gathers over them.
// Blocks until each has received a message from every other, so that a network that does not join two of them is found
// here: kDeadlineExceeded, or kUnavailable, names the ranks, and the addresses of two that do not reach each other.
// kFailedPrecondition if UCX is not installed.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(int rank, int size, const UcxTransportOptions& options,
                                                              const BlobGather& gather);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_UCX_TRANSPORT_H_
