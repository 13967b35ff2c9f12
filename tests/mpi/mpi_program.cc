// SPDX-License-Identifier: Apache-2.0
//
// A program that uses MPI itself, and also a group of this project. Its first argument selects its own use of MPI:
//
//   multiple    MPI_Init_thread with MPI_THREAD_MULTIPLE, and collectives of both at the same time
//   funneled    MPI_Init_thread with MPI_THREAD_FUNNELED
//   finalized   MPI_Init and MPI_Finalize, before it joins the group
//   none        nothing: two groups, one after the other
//
// Rank 0 prints the result: "ok", or the error of joining.
#include <mpi.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/init_process_group.h"

namespace fsdp {
namespace {

constexpr int kSteps = 200;

absl::Status Join(std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(group, InitProcessGroup({.timeout = absl::Minutes(1), .backend = "mpi"}));
  return absl::OkStatus();
}

// Sums of the group on its thread, while this thread sums by MPI at the same time if `mpi`.
absl::Status Sum(ProcessGroup& group, bool mpi) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group.device()->CreateStream("sums"));
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, group.Allocate(sizeof(int64_t)));
  auto* const sum = reinterpret_cast<int64_t*>(buffer.data());
  *sum = 1;
  const Tensor t(std::move(buffer), DType::kInt64, Shape({1}));
  int64_t expected = 1;
  for (int step = 0; step < kSteps; ++step) {
    group.AllReduce(t, step % 50 == 0 ? ReduceOp::kSum : ReduceOp::kMax, *stream);
    if (step % 50 == 0) expected *= group.size();
    int mine = step;
    int all = 0;
    if (mpi && (MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS ||
                all != step * group.size())) {
      return absl::DataLossError("the program's own sum");
    }
  }
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  return *sum == expected ? absl::OkStatus() : absl::DataLossError(absl::StrCat("the sum is ", *sum));
}

absl::Status WithOwnMpi() {
  // The group must leave the program's MPI as it found it: its error handler, and not finalized.
  MPI_Errhandler before = MPI_ERRHANDLER_NULL;
  MPI_Errhandler after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  {
    std::shared_ptr<ProcessGroup> group;
    FSDP_RETURN_IF_ERROR(Join(group));
    FSDP_RETURN_IF_ERROR(Sum(*group, true));
  }
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  return before == after && is_finalized == 0 ? absl::OkStatus() : absl::InternalError("the program's MPI was changed");
}

absl::Status TwoGroups() {
  for (int i = 0; i < 2; ++i) {
    std::shared_ptr<ProcessGroup> group;
    FSDP_RETURN_IF_ERROR(Join(group));
    FSDP_RETURN_IF_ERROR(Sum(*group, false));
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& mode) {
  if (mode == "none") return TwoGroups();
  if (mode == "finalized") {
    MPI_Init(nullptr, nullptr);
    MPI_Finalize();
    std::shared_ptr<ProcessGroup> group;
    return Join(group);
  }
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, mode == "multiple" ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &level);
  const absl::Status status = WithOwnMpi();
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return status;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const absl::Status status = fsdp::Run(argc > 1 ? argv[1] : "none");
  const absl::StatusOr<fsdp::Rendezvous> job = fsdp::RendezvousFromEnvironment();
  if (job.ok() && job->rank == 0) std::printf("%s\n", status.ok() ? "ok" : std::string(status.message()).c_str());
  return 0;
}
