// SPDX-License-Identifier: Apache-2.0
//
// Jobs that meet at one port, in one process; ranks of one job in several processes are in init_process_group_test.cc.
#include "fsdp/collectives/job/job_store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/fake_torch_store.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/store_frame.h"
#include "fsdp/collectives/job/store_member.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

int FreePort() { return ListeningPort(ListenTcp("127.0.0.1", 0)->get()).value(); }

Rendezvous RankOf(const std::string& job, int rank, int port) {
  return {.rank = rank,
          .world_size = 2,
          .local_rank = rank,
          .local_world_size = 2,
          .master_addr = "127.0.0.1",
          .master_port = port,
          .source = "test",
          .job = absl::StrCat(job, " of process ", getpid())};
}

// Both ranks of a job meet, and rank 1 leaves. Returns the watch of rank 0, which holds the port.
std::unique_ptr<JobWatch> MeetAs(const Rendezvous& rank0, const Rendezvous& rank1) {
  std::unique_ptr<JobStore> stores[2];
  std::thread other([&] { stores[1] = JobStore::Open(rank1, absl::Seconds(20)).value(); });
  stores[0] = JobStore::Open(rank0, absl::Seconds(20)).value();
  other.join();
  std::unique_ptr<JobWatch> watches[2];
  std::thread watching([&] { watches[1] = stores[1]->Watch().value(); });
  watches[0] = stores[0]->Watch().value();
  watching.join();
  watches[1]->Leave();
  return std::move(watches[0]);
}

std::unique_ptr<JobWatch> Meet(const std::string& job, int port) {
  return MeetAs(RankOf(job, 0, port), RankOf(job, 1, port));
}

// A rank as if each were on its own host. The name of the local socket contains the master's address, and each rank
// writes that address in another form, so that they can meet by TCP only.
Rendezvous HostOf(const std::string& job, int rank, int port) {
  Rendezvous host = RankOf(job, rank, port);
  host.local_rank = 0;
  host.local_world_size = 1;
  host.master_addr = rank == 0 ? "127.0.0.1" : "localhost";
  return host;
}

Rendezvous HostOfTorchrun(const std::string& job, int rank, int port) {
  Rendezvous host = HostOf(job, rank, port);
  host.master_port_is_taken = true;
  return host;
}

std::string KeyOf(const std::string& job) { return absl::StrCat("fsdp/", RankOf(job, 0, 0).job, "/store"); }

// The server of a store that an earlier run of the job has left behind.
class OtherStore {
 public:
  OtherStore(const std::string& job, int world_size) {
    std::vector<FileDescriptor> listeners;
    listeners.push_back(ListenTcp("127.0.0.1", 0).value());
    port_ = ListeningPort(listeners[0].get()).value();
    server_ = StoreServer::Start(std::move(listeners), StoreMember::OfThisProcess(job, 0, world_size)).value();
  }
  int port() const { return port_; }

 private:
  int port_ = 0;
  std::unique_ptr<StoreServer> server_;
};

TEST(JobStoreTest, HostsMeetAtTheMastersPort) {
  const int port = FreePort();
  EXPECT_NE(MeetAs(HostOf("job", 0, port), HostOf("job", 1, port)), nullptr);
}

TEST(JobStoreTest, HostsOfTorchrunMeetThroughItsAgent) {
  FakeTorchStore agent;
  EXPECT_NE(MeetAs(HostOfTorchrun("job", 0, agent.port()), HostOfTorchrun("job", 1, agent.port())), nullptr);
  EXPECT_THAT(agent.Get(KeyOf("job")), testing::MatchesRegex(":[0-9]+")) << "on all interfaces, at the agent's host";
}

// After a restart the agent still has the address that the former rank 0 published: a port without a listener, a port
// of another job, or one of an earlier run of this job with another world size.
TEST(JobStoreTest, AnAddressOfAFormerLifeIsReadAgain) {
  const int nobody = FreePort();
  const OtherStore another_job("another", 2);
  const OtherStore former_life(RankOf("job", 0, 0).job, 3);
  for (const int port : {nobody, another_job.port(), former_life.port()}) {
    FakeTorchStore agent;
    agent.Set(KeyOf("job"), absl::StrCat("127.0.0.1:", port));
    std::unique_ptr<JobStore> late;
    std::thread early([&] {
      late = JobStore::Open(HostOfTorchrun("job", 1, agent.port()), absl::Seconds(20)).value();
      EXPECT_OK(late->Watch().status());
    });
    absl::SleepFor(absl::Milliseconds(150));  // so that rank 1 usually tries the old address first
    const auto rank0 = JobStore::Open(HostOfTorchrun("job", 0, agent.port()), absl::Seconds(20));
    early.join();
    ASSERT_OK(rank0);
    EXPECT_OK((*rank0)->Watch().status());
  }
}

TEST(JobStoreTest, WhatIsNoTcpStoreAtTheAgentsPortIsNamed) {
  FakeTorchStore agent;
  agent.Set(KeyOf("job"), "nonsense");
  EXPECT_THAT(JobStore::Open(HostOfTorchrun("job", 1, agent.port()), absl::Seconds(20)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("published address \"nonsense\"")));
}

TEST(JobStoreTest, AnAgentThatIsNotThereIsNamedAtTheDeadline) {
  const int port = FreePort();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(JobStore::Open(HostOfTorchrun("job", rank, port), absl::Milliseconds(50)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("torchrun's agent at ")));
  }
}

// Like the steps of two jobs in Slurm, whose ports overlap.
TEST(JobStoreTest, OfSeveralPortsTheFirstFreeOneIsTaken) {
  const OtherStore another_job("another", 2);
  const int free = FreePort();
  Rendezvous ranks[2] = {HostOf("job", 0, 0), HostOf("job", 1, 0)};
  for (Rendezvous& rank : ranks) rank.candidate_ports = {another_job.port(), free};
  EXPECT_NE(MeetAs(ranks[0], ranks[1]), nullptr);
}

TEST(JobStoreTest, TheSecondJobOnAPortIsToldAtOnceWhoHoldsItAsLongAsTheFirstLives) {
  const int port = FreePort();
  std::unique_ptr<JobWatch> first = Meet("first", port);
  for (const int rank : {0, 1}) {
    const absl::Time start = SteadyNow();
    EXPECT_THAT(JobStore::Open(RankOf("second", rank, port), absl::Seconds(20)),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("rank ", rank, " of 2: rendezvous: port ", port,
                                                      " of 127.0.0.1 is held by another job")),
                               HasSubstr("job \"first of process"),
                               HasSubstr(absl::StrCat("(rank 0 of 2, pid ", getpid(), " on ")),
                               HasSubstr("not \"second of process"), HasSubstr("--run_id"))));
    EXPECT_LT(SteadyNow() - start, absl::Seconds(10));
  }
  first.reset();
  EXPECT_NE(Meet("second", port), nullptr) << "the port is free once the first job has ended";
}

// torchrun's agent or any other server may never answer; the job then meets at its local socket.
TEST(JobStoreTest, AServerThatIsNoStoreDoesNotKeepTheJobFromMeeting) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor silent, ListenTcp("127.0.0.1", 0));
  EXPECT_NE(Meet("job", ListeningPort(silent.get()).value()), nullptr);
}

TEST(JobStoreTest, AStoreThatAnswersLateIsOne) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  std::thread holder([&listener] {
    FileDescriptor socket;
    while (!socket.ok()) socket = FileDescriptor(accept(listener.get(), nullptr, nullptr));
    absl::SleepFor(absl::Seconds(1));  // its process does not get a core
    const StoreMember self = {.job = "another", .rank = 0, .world_size = 2, .host = "h", .pid = 5};
    EXPECT_OK(SendAll(socket.get(), EncodeStoreFrame(self.ToFrame(0)), SteadyNow() + absl::Seconds(20)));
    char rest[1 << 10];
    while (recv(socket.get(), rest, sizeof(rest), 0) > 0) {
    }
  });
  const auto store = JobStore::Open(RankOf("job", 0, ListeningPort(listener.get()).value()), absl::Seconds(20));
  EXPECT_THAT(store, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is held by another job")));
  holder.join();
}

TEST(JobStoreTest, AProcessThatServesItsJobAlreadyIsToldSo) {
  const int port = FreePort();
  const std::unique_ptr<JobWatch> first = Meet("job", port);
  EXPECT_THAT(JobStore::Open(RankOf("job", 0, port), absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 is here already")));
}

}  // namespace
}  // namespace fsdp
