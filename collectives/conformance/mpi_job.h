// SPDX-License-Identifier: Apache-2.0
//
// MpiJob: the group of all processes that MPI's launcher started, for tests that are linked with conformance_mpi.cc.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_MPI_JOB_H_
#define FSDP_COLLECTIVES_CONFORMANCE_MPI_JOB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// Joined when the tests begin, left when they have ended; the error of joining.
absl::StatusOr<std::shared_ptr<ProcessGroup>> MpiJob();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_MPI_JOB_H_
