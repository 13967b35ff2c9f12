// SPDX-License-Identifier: Apache-2.0
//
// The transport between processes that MPI's launcher started: MPI's messages, for networks that only MPI reaches
// (Slingshot, Omni-Path). It uses only MPI_Isend, MPI_Irecv and MPI_Test, on its own communicators. The first transport
// loads the library (mpi_library.h, which also describes MPI_Init and MPI_Finalize); without one,
// CreateMpiTransport returns an error.
//
// MPI has limits that ucx_transport.h does not have:
//   - It has no descriptor to sleep on. A wait tests, for 50 us without a pause, and then sleeps between two tests: for
//     10 us at first and up to 1 ms while it waits for short messages, which can delay one by that much; for 50 us at
//     most while a long one is under way.
//   - A message that has begun cannot be withdrawn. After an error, AwaitSends gives up after 200 ms; MPI may still
//     read the memory of a send, and change the memory of a receive, if the peer continues. A program should end.
//   - Only the watch notices a rank that dies, unless MPI's launcher ends the job first, as it usually does.
//   - Creating a communicator (CreateMpiTransport, Split) has no deadline.
#ifndef FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
#define FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

struct MpiTransportOptions {
  std::string place = {};     // of this rank, for the errors of others: "pid 12 on host-b"
  PeerWatch watch = nullptr;  // polled during every wait, which ends with its verdict; null: none

  // A longer message is sent in pieces, because MPI counts bytes in an int. All ranks must have the same value.
  int64_t piece_bytes = int64_t{1} << 30;
};

// The transport of rank `rank` of `size` ranks, which all call this at the same time; `gather` gathers over them. They
// are ranks of one MPI_COMM_WORLD, in any order; its other ranks need not take part. kFailedPrecondition if MPI cannot
// be loaded, if the ranks are not in one MPI_COMM_WORLD, because the launcher of another MPI started them, and in the
// cases of StartMpi.
absl::StatusOr<std::unique_ptr<Transport>> CreateMpiTransport(int rank, int size, const MpiTransportOptions& options,
                                                              const BlobGather& gather);

// Rank 0 of a job passes `address`, and every rank gets it: for ranks that have no other way to find each other. All
// ranks of MPI_COMM_WORLD call it at the same time, with their ranks in the job. At most 1023 bytes. Same errors as
// CreateMpiTransport.
absl::StatusOr<std::string> AddressOverMpi(int rank, int size, const std::string& address);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
