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

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_matchers.h"
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

// Both ranks of a job meet and close their stores; the server of rank 0 is returned.
std::unique_ptr<StoreServer> Meet(const std::string& job, int port) {
  std::unique_ptr<JobStore> stores[2];
  std::thread other([&] { stores[1] = JobStore::Open(RankOf(job, 1, port), absl::Seconds(20)).value(); });
  stores[0] = JobStore::Open(RankOf(job, 0, port), absl::Seconds(20)).value();
  other.join();
  std::thread closing([&] { EXPECT_OK(stores[1]->Close()); });
  EXPECT_OK(stores[0]->Close());
  closing.join();
  return stores[0]->TakeServer();
}

TEST(JobStoreTest, TheSecondJobOnAPortIsToldAtOnceWhoHoldsItAsLongAsTheFirstLives) {
  const int port = FreePort();
  std::unique_ptr<StoreServer> first = Meet("first", port);
  for (const int rank : {0, 1}) {
    const absl::Time start = absl::Now();
    EXPECT_THAT(JobStore::Open(RankOf("second", rank, port), absl::Seconds(20)),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("rank ", rank, " of 2: rendezvous: port ", port,
                                                      " of 127.0.0.1 is held by another job")),
                               HasSubstr("job \"first of process"),
                               HasSubstr(absl::StrCat("(rank 0 of 2, pid ", getpid(), " on ")),
                               HasSubstr("not \"second of process"), HasSubstr("--run_id"))));
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  }
  first.reset();
  EXPECT_NE(Meet("second", port), nullptr) << "the port is free once the first job has ended";
}

// torchrun's agent, or any other server: it may never answer, and the job meets at its local socket.
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
    EXPECT_OK(SendAll(socket.get(), EncodeStoreFrame(self.ToFrame(0)), absl::Now() + absl::Seconds(20)));
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
  const std::unique_ptr<StoreServer> first = Meet("job", port);
  EXPECT_THAT(JobStore::Open(RankOf("job", 0, port), absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 is here already")));
}

}  // namespace
}  // namespace fsdp
