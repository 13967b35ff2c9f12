// SPDX-License-Identifier: Apache-2.0
//
// TransportBackend: a transport that a program adds to InitProcessGroup by linking the library that registers it, as it
// adds the kernels of a kind of device. So nothing here depends on MPI, and a program without it links none of its
// code. UCX is always available and need not be registered.
#ifndef FSDP_COLLECTIVES_NET_TRANSPORT_BACKEND_H_
#define FSDP_COLLECTIVES_NET_TRANSPORT_BACKEND_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

struct TransportBackend {
  std::string_view name;  // InitOptions::backend; static storage

  // The transport of rank `rank` of `size` ranks, which all call this at the same time. `place` names this rank in the
  // errors of others: "pid 12 on host-b". `watch` is polled during every wait.
  absl::StatusOr<std::unique_ptr<Transport>> (*create)(int rank, int size, const std::string& place,
                                                       const PeerWatch& watch, const BlobGather& gather);

  // For ranks whose launcher does not name a master: rank 0 passes `address`, at most 1023 bytes, and every rank gets
  // it. All ranks call it at the same time.
  absl::StatusOr<std::string> (*share_address)(int rank, int size, const std::string& address);
};

// Adds a backend. Call from a static initialiser of the library that has it. Always returns true, as the value of the
// initialised variable. Not thread-safe.
bool RegisterTransportBackend(const TransportBackend& backend);

// The backend of this name; null if the program does not link it. Thread-safe after main has begun.
const TransportBackend* RegisteredTransportBackend(std::string_view name);

// The names of all, sorted.
std::vector<std::string> RegisteredTransportBackends();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_TRANSPORT_BACKEND_H_
