// SPDX-License-Identifier: Apache-2.0
//
// job_rank: for tests: a rank that joins the job of its environment and does no work.
//
//   job_rank meet    prints whom it met, and leaves
//   job_rank watch   prints whom it met, waits until a rank is lost, prints which one, and exits with 75
//
// Its lines: "rank 1 pid 4 met host-a host-a host-b host-b", "rank 1 verdict: rank 3 (host-b, pid 5) is gone".
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/job/job_watch.h"
#include "fsdp/collectives/job/rendezvous.h"

namespace fsdp {
namespace {

absl::Status Run(std::string_view mode) {
  FSDP_ASSIGN_OR_RETURN(const Rendezvous rendezvous, RendezvousFromEnvironment());
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<JobStore> store, JobStore::Open(rendezvous, absl::Seconds(60)));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                        store->AllGatherObject(HostIdentity::OfThisProcess("").name));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<JobWatch> watch, store->Watch());
  std::printf("rank %d pid %d met %s\n", rendezvous.rank, getpid(), absl::StrJoin(hosts, " ").c_str());
  std::fflush(stdout);
  absl::Status verdict = mode == "watch" ? watch->Verdict(absl::InfiniteDuration()) : absl::OkStatus();
  if (verdict.ok()) {
    watch->Leave();
  } else {
    std::printf("rank %d verdict: %s\n", rendezvous.rank, std::string(verdict.message()).c_str());
  }
  return verdict;
}

int Main(int argc, char** argv) {
  const std::string_view mode = argc == 2 ? argv[1] : "";
  if (mode != "meet" && mode != "watch") {
    std::fprintf(stderr, "wanted: job_rank meet, or job_rank watch\n");
    return kExitUsage;
  }
  const absl::Status status = Run(mode);
  if (!status.ok()) std::fprintf(stderr, "job_rank: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
