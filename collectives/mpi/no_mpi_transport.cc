// SPDX-License-Identifier: Apache-2.0
//
// mpi_transport.h in builds without MPI (see BUILD.bazel).
#include "fsdp/collectives/mpi/mpi_transport.h"

namespace fsdp {
namespace {

absl::Status NoMpi() {
  return absl::FailedPreconditionError(
      "backend mpi: this program was built without MPI; install MPI (Debian: libopenmpi-dev openmpi-bin, or "
      "libmpich-dev "
      "mpich), or name its compiler wrapper in MPICC, and build again");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateMpiTransport(int, int, const MpiTransportOptions&, const BlobGather&) {
  return NoMpi();
}

absl::StatusOr<std::string> AddressOverMpi(int, int, const std::string&) { return NoMpi(); }

}  // namespace fsdp
