// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/init_process_group.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/conformance/process_ranks.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/net/transport_backend.h"
#include "fsdp/collectives/net/ucx_library.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Sums the ranks over the group and checks the total.
absl::Status UseGroup(ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group.device()->CreateStream("test"));
  FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kInt64, 100000));
  Fill(group, t, [&](int64_t i) { return ValueOf(group.rank(), i); });
  group.AllReduce(t, ReduceOp::kSum, *stream);
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  return ExpectElements(group, t, [&](int64_t i) {
    int sum = 0;
    for (int r = 0; r < group.size(); ++r) {
      sum += ValueOf(r, i);
    }
    return sum;
  });
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// Runs ranks that have `variables(rank)` in their environment and no other variable that names a job.
std::vector<RankResult> RunInEnvironment(int world_size, const std::function<Variables(int rank)>& variables) {
  return RunProcesses(world_size, [&](int rank) -> absl::Status {
    for (const auto& [name, value] : variables(rank)) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // a job may form its group again
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup({.timeout = absl::Minutes(1)}));
      if (group->rank() != rank || group->size() != world_size || group->backend() != "shm") {
        return absl::DataLossError(absl::StrCat("rank ", group->rank(), " of ", group->size()));
      }
      FSDP_RETURN_IF_ERROR(UseGroup(*group));
    }
    return absl::OkStatus();
  });
}

Variables Torchrun(int rank, int world_size, int port) {
  return {{"RANK", absl::StrCat(rank)},       {"WORLD_SIZE", absl::StrCat(world_size)},
          {"LOCAL_RANK", absl::StrCat(rank)}, {"LOCAL_WORLD_SIZE", absl::StrCat(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},       {"MASTER_PORT", absl::StrCat(port)}};
}

int FreePort() { return ListeningPort(ListenTcp("127.0.0.1", 0)->get()).value(); }

TEST(InitProcessGroupTest, OneProcessIsAGroupOfOne) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup());
  EXPECT_EQ(group->size(), 1);
  EXPECT_OK(UseGroup(*group));
}

TEST(InitProcessGroupTest, JoinsATorchrunJob) {
  const int port = FreePort();
  for (const RankResult& result : RunInEnvironment(3, [&](int rank) { return Torchrun(rank, 3, port); })) {
    EXPECT_OK(result.status);
  }
}

TEST(InitProcessGroupTest, JoinsATorchrunJobWhoseAgentHoldsThePort) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor agent, ListenTcp("127.0.0.1", 0));
  ASSERT_OK_AND_ASSIGN(const int port, ListeningPort(agent.get()));
  for (const char* says_so : {"True", "False"}) {
    const std::vector<RankResult> results = RunInEnvironment(2, [&](int rank) {
      Variables variables = Torchrun(rank, 2, port);
      variables.emplace_back("TORCHELASTIC_USE_AGENT_STORE", says_so);
      return variables;
    });
    for (const RankResult& result : results) {
      EXPECT_OK(result.status);
    }
  }
}

// The results of the ranks of two jobs that were given one port: "joined", with the blobs of all ranks of the group, or
// the error. A rank keeps its group until all are done.
std::vector<std::string> TwoJobsOnOnePort(const std::string& name_of_a, const std::string& name_of_b) {
  const int port = FreePort();
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const answers = new (shared) std::atomic<int>(0);
  const std::vector<RankResult> results = RunProcesses(4, [&](int process) -> absl::Status {
    const bool is_b = process >= 2;
    for (const auto& [name, value] : Torchrun(process % 2, 2, port)) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    if (const std::string& job = is_b ? name_of_b : name_of_a; !job.empty()) {
      setenv("FSDP_RUN_ID", job.c_str(), 1);
    }
    const absl::StatusOr<std::shared_ptr<ProcessGroup>> group = InitProcessGroup({.timeout = absl::Seconds(20)});
    answers->fetch_add(1);
    if (!group.ok()) return group.status();
    while (answers->load() < 4) absl::SleepFor(absl::Milliseconds(1));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, (*group)->AllGatherObject(is_b ? "b" : "a"));
    return absl::UnknownError(absl::StrCat("joined ", blobs[0], blobs[1]));
  });
  std::vector<std::string> texts;
  for (const RankResult& result : results) {
    texts.emplace_back(result.status.message());
  }
  munmap(shared, 4096);
  return texts;
}

// Both ranks of one job have met; the ranks of the other job report the holder of the port.
TEST(InitProcessGroupTest, TwoJobsOnOnePortNeverJoinEachOther) {
  const std::vector<std::string> texts = TwoJobsOnOnePort("a", "b");
  const bool a_met = texts[0] == "joined aa";
  EXPECT_EQ(texts[a_met ? 1 : 3], a_met ? "joined aa" : "joined bb");
  EXPECT_EQ(texts[a_met ? 0 : 2], a_met ? "joined aa" : "joined bb");
  for (const int told : a_met ? std::vector<int>{2, 3} : std::vector<int>{0, 1}) {
    EXPECT_THAT(texts[told], testing::AllOf(HasSubstr("is held by another job"), HasSubstr(a_met ? "run a" : "run b"),
                                            HasSubstr("(rank 0 of 2, pid ")));
  }
}

// Both jobs have one name, so the store takes the first process that arrives as each rank, and refuses the second.
TEST(InitProcessGroupTest, OfTwoJobsThatNothingTellsApartOnlyOneRuns) {
  const std::vector<std::string> texts = TwoJobsOnOnePort("", "");
  int joined = 0;
  for (const std::string& text : texts) {
    if (absl::StartsWith(text, "joined")) {
      ++joined;
    } else {
      EXPECT_THAT(text, HasSubstr("two processes are the same rank of one job"));
    }
  }
  EXPECT_EQ(joined, 2);
}

TEST(InitProcessGroupTest, JoinsASlurmStep) {
  const std::vector<RankResult> results = RunInEnvironment(2, [&](int rank) -> Variables {
    return {{"SLURM_PROCID", absl::StrCat(rank)},
            {"SLURM_NTASKS", "2"},
            {"SLURM_LOCALID", absl::StrCat(rank)},
            {"SLURM_JOB_ID", absl::StrCat("test-", getppid())}};
  });
  for (const RankResult& result : results) {
    EXPECT_OK(result.status);
  }
}

TEST(InitProcessGroupTest, JoinsAnOpenMpiJob) {
  const std::vector<RankResult> results = RunInEnvironment(2, [&](int rank) -> Variables {
    return {{"OMPI_COMM_WORLD_RANK", absl::StrCat(rank)},
            {"OMPI_COMM_WORLD_SIZE", "2"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", absl::StrCat(rank)},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
            {"PMIX_NAMESPACE", absl::StrCat("test-", getppid())}};
  });
  for (const RankResult& result : results) {
    EXPECT_OK(result.status);
  }
}

// Runs one rank per host id, all on this machine, as if they were on hosts with these ids.
std::vector<RankResult> RunOnHosts(const std::vector<std::string>& hosts, const std::string& backend,
                                   const std::function<absl::Status(ProcessGroup& group)>& rank_main) {
  Rendezvous job = NewJob(static_cast<int>(hosts.size()));
  job.local_world_size = 1;
  return RunProcesses(job.world_size, [&](int rank) -> absl::Status {
    Rendezvous rendezvous = job;
    rendezvous.rank = rank;
    FSDP_ASSIGN_OR_RETURN(
        const std::shared_ptr<ProcessGroup> group,
        InitProcessGroup(rendezvous, {.timeout = absl::Minutes(1), .backend = backend, .host_id = hosts[rank]}));
    return rank_main(*group);
  });
}

TEST(InitProcessGroupTest, RanksOnSeveralHostsHaveANetwork) {
  if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  for (const RankResult& result : RunOnHosts({"a", "a", "b", "b"}, "", [](ProcessGroup& group) {
         EXPECT_EQ(group.backend(), "net");
         return UseGroup(group);
       })) {
    EXPECT_OK(result.status);
  }
}

// Kubernetes without an operator, and some schedulers, do not set LOCAL_RANK. The place on the host chooses the GPU.
TEST(InitProcessGroupTest, ALocalRankThatTheEnvironmentDoesNotTellIsFoundWhenTheRanksHaveMet) {
  if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  const int port = FreePort();
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "a", "b", "b"}, {"a", "b", "a", "b"}, {"a", "a", "a", "b"}, {"a", "a", "a"}}) {
    const int size = static_cast<int>(hosts.size());
    const std::vector<RankResult> results = RunProcesses(size, [&](int rank) -> absl::Status {
      for (const auto& [name, value] : Torchrun(rank, size, port)) setenv(name.c_str(), value.c_str(), 1);
      unsetenv("LOCAL_RANK");
      unsetenv("LOCAL_WORLD_SIZE");
      setenv("FSDP_HOSTID", hosts[rank].c_str(), 1);
      Rendezvous known;
      InitOptions options = {.timeout = absl::Minutes(1)};
      options.make_device = [&known](const Rendezvous& job) {
        known = job;
        return CreateHostDevice();
      };
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup(options));
      const auto place = std::count(hosts.begin(), hosts.begin() + rank, hosts[rank]);
      const auto ranks = std::count(hosts.begin(), hosts.end(), hosts[rank]);
      if (!known.local_ranks_are_known || known.local_rank != place || known.local_world_size != ranks) {
        return absl::DataLossError(absl::StrCat("local rank ", known.local_rank, " of ", known.local_world_size,
                                                ", wanted ", place, " of ", ranks));
      }
      return UseGroup(*group);
    });
    for (const RankResult& result : results) EXPECT_OK(result.status);
  }
}

TEST(InitProcessGroupTest, ADeviceThatCannotBeMadeIsTheRanksErrorBeforeAnybodyMeets) {
  Rendezvous job = NewJob(2);
  InitOptions options = {.timeout = absl::Minutes(1)};
  options.make_device = [](const Rendezvous&) { return absl::UnimplementedError("no such device"); };
  EXPECT_THAT(InitProcessGroup(job, options), StatusIs(absl::StatusCode::kUnimplemented, "no such device"));
}

TEST(InitProcessGroupTest, ANetworkOnOneHostIsThereForTheAsking) {
  if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  for (const RankResult& result : RunOnHosts({"", "", ""}, "net", [](ProcessGroup& group) {
         EXPECT_EQ(group.backend(), "net");
         return UseGroup(group);
       })) {
    EXPECT_OK(result.status);
  }
}

// In the environment each rank is the only one on its host, as for two torchrun agents on one machine.
TEST(InitProcessGroupTest, HostsAreWhatTheKernelSaysAndNotTheLauncher) {
  for (const RankResult& result : RunOnHosts({"", ""}, "", [](ProcessGroup& group) {
         EXPECT_EQ(group.backend(), "shm");
         return UseGroup(group);
       })) {
    EXPECT_OK(result.status);
  }
}

// A backend whose transport cannot be created; its error proves that it was called.
const bool broken_is_registered =
    RegisterTransportBackend({.name = "pigeons",
                              .create = [](int rank, int, const std::string&, const PeerWatch&,
                                           const BlobGather&) -> absl::StatusOr<std::unique_ptr<Transport>> {
                                return absl::UnavailableError(absl::StrCat("rank ", rank, ": no pigeon"));
                              },
                              .share_address = nullptr});

TEST(InitProcessGroupTest, ABackendIsThereIfTheProgramLinksALibraryThatRegistersIt) {
  ASSERT_TRUE(broken_is_registered);
  for (const RankResult& result : RunOnHosts({"a", "b"}, "pigeons", [](ProcessGroup&) { return absl::OkStatus(); })) {
    EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no pigeon")));
  }
  EXPECT_EQ(RegisteredTransportBackend("owls"), nullptr);
}

TEST(InitProcessGroupTest, SharedMemoryBetweenHostsIsRefused) {
  for (const RankResult& result :
       RunOnHosts({"a", "b", "b"}, "shm", [](ProcessGroup& group) { return UseGroup(group); })) {
    EXPECT_THAT(
        result.status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "backend \"shm\" for ranks on 2 hosts with 1, 2 ranks: expected \"net\", \"mpi\" or \"pigeons\""));
  }
}

TEST(InitProcessGroupTest, AHostIsKnownByItsKernelOrByTheIdThatOverridesIt) {
  const HostIdentity a = HostIdentity::FromBlob(HostIdentity::OfThisProcess("").ToBlob());
  EXPECT_FALSE(a.name.empty());
  EXPECT_EQ(a.kernel, HostIdentity::OfThisProcess("").kernel);
  const HostIdentity b = HostIdentity::FromBlob(HostIdentity::OfThisProcess("rack 7").ToBlob());
  EXPECT_EQ(b.name, a.name);
  EXPECT_EQ(b.kernel, "FSDP_HOSTID rack 7");
}

TEST(InitProcessGroupTest, RanksThatDisagreeOnTheWorldSizeAreToldAtOnce) {
  const Rendezvous job = NewJob(2);
  const std::vector<RankResult> results = RunProcesses(2, [&](int rank) -> absl::Status {
    Rendezvous rendezvous = job;
    rendezvous.rank = rank;
    rendezvous.world_size += rank;
    rendezvous.local_world_size += rank;
    return InitProcessGroup(rendezvous, {.timeout = absl::Seconds(1)}).status();
  });
  EXPECT_THAT(results[1].status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 has world size 2, rank 1 has 3")));
}

TEST(InitProcessGroupTest, ABackendThatTheDeviceCannotHaveIsRefused) {
  Rendezvous job;
  InitOptions options;
  options.backend = "nccl";
  EXPECT_THAT(InitProcessGroup(job, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "backend \"nccl\" for 1 rank on cpu: expected \"local\""));
  job.world_size = 2;
  EXPECT_THAT(InitProcessGroup(job, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "backend \"nccl\" for 2 ranks on cpu: expected \"shm\", \"net\", \"mpi\" or \"pigeons\""));
  job.world_size = 1;
  options.backend = "shm";
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> alone, InitProcessGroup(job, options));
  EXPECT_EQ(alone->backend(), "local");
}

}  // namespace
}  // namespace fsdp
