// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite over MPI, whose ranks are processes: MPI's launcher starts this program on each, and each runs
// all tests. A group under test has the first ranks of the job; the others of the job run nothing meanwhile.
//
//   mpiexec -n 7 bazel-bin/collectives/conformance/conformance_mpi_ranks
//
// FSDP_HOSTID specifies which ranks are on one host.
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/conformance/mpi_job.h"
#include "fsdp/collectives/init_process_group.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

absl::StatusOr<std::shared_ptr<ProcessGroup>>& Job() {
  static auto* const job = new absl::StatusOr<std::shared_ptr<ProcessGroup>>(absl::UnavailableError("not joined"));
  return *job;
}

class JobEnvironment final : public testing::Environment {
 public:
  void SetUp() override { Job() = InitProcessGroup({.timeout = absl::Minutes(1), .backend = "mpi"}); }
  // Before the end of the process, which finalizes MPI only if no group is left.
  void TearDown() override { Job() = absl::UnavailableError("left"); }
};

[[maybe_unused]] testing::Environment* const environment = testing::AddGlobalTestEnvironment(new JobEnvironment);

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> MpiJob() { return Job(); }

std::vector<std::string> BackendsUnderTest() { return {"mpi"}; }

absl::Status CanRun(const GroupUnderTest& under_test) {
  if (!Job().ok() || (*Job())->size() >= under_test.size) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("this job has ", (*Job())->size(), " ranks"));
}

absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration) {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> job, MpiJob());
  const bool takes_part = job->rank() < under_test.size;
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, job->Split(takes_part ? 0 : 1, job->rank()));
  if (!takes_part) return absl::OkStatus();
  const absl::Status status = rank_main(group);
  if (!status.ok()) group->Abort(status);
  return status;
}

}  // namespace fsdp
