// SPDX-License-Identifier: Apache-2.0
//
// Registers backend "mpi" before main; the library is linked with alwayslink, because nothing refers to it by name.
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/mpi/mpi_transport.h"
#include "fsdp/collectives/net/transport_backend.h"

namespace fsdp {
namespace {

absl::StatusOr<std::unique_ptr<Transport>> Create(int rank, int size, const std::string& place, const PeerWatch& watch,
                                                  const BlobGather& gather) {
  return CreateMpiTransport(rank, size, {.place = place, .watch = watch}, gather);
}

[[maybe_unused]] const bool registered =
    RegisterTransportBackend({.name = "mpi", .create = Create, .share_address = AddressOverMpi});

}  // namespace
}  // namespace fsdp
