// SPDX-License-Identifier: Apache-2.0
//
// The transport between processes that MPI's launcher started: MPI's messages, for networks that nothing else reaches
// (Slingshot, Omni-Path). Of MPI it uses MPI_Isend, MPI_Irecv and MPI_Test on communicators of its own. The library is
// loaded when the first of them is made (mpi_library.h, which also has what becomes of MPI_Init and MPI_Finalize);
// without any, CreateMpiTransport says so.
//
// What MPI cannot do, and so differs from ucx_transport.h:
//   - It has no descriptor to sleep on. A wait tests, for 50 us without a pause, and then sleeps between two tests, for
//     10 us at first and up to 1 ms while it waits for short messages, which is how much later it may then see one; for
//     50 us at most while a long one is under way.
//   - A message that has begun cannot be taken back. After an error, AwaitSends gives up after 200 ms, and MPI may then
//     still read the memory of a send, and change that of a receive, when the peer goes on. A program should end.
//   - A rank that dies is noticed by the watch alone, unless MPI's launcher ends the job first, as it usually does.
//   - Making a communicator (CreateMpiTransport, Split) has no deadline.
#ifndef FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
#define FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

struct MpiTransportOptions {
  std::string place = {};     // of this rank, for the errors of others: "pid 12 on host-b"
  PeerWatch watch = nullptr;  // asked during every wait, which ends with what it knows; null: there is none

  // A longer message is sent in pieces, since MPI counts bytes in an int. All ranks must have the same.
  int64_t piece_bytes = int64_t{1} << 30;
};

// The transport of rank `rank` of `size` ranks, which all call this at the same time; `gather` gathers over them. They
// are ranks of one MPI_COMM_WORLD, in any order; others of it need not take part. kFailedPrecondition if
// MPI cannot be loaded, if they are not of one MPI_COMM_WORLD, because a launcher that is not this MPI's started them,
// and as StartMpi.
absl::StatusOr<std::unique_ptr<Transport>> CreateMpiTransport(int rank, int size, const MpiTransportOptions& options,
                                                              const BlobGather& gather);

// Rank 0 of a job gives `address`, and every rank gets it: for ranks that have no other way to find each other. All
// ranks of MPI_COMM_WORLD call it at the same time, with their ranks in the job. At most 1023 bytes. Errors as above.
absl::StatusOr<std::string> AddressOverMpi(int rank, int size, const std::string& address);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
