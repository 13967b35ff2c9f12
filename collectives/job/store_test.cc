// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/store_frame.h"
#include "fsdp/collectives/job/store_gather.h"
#include "fsdp/collectives/job/store_server.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kWorldSize = 3;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    FileDescriptor listener = ListenTcp("127.0.0.1", 0).value();
    port_ = ListeningPort(listener.get()).value();
    std::vector<FileDescriptor> listeners;
    listeners.push_back(std::move(listener));
    server_ = StoreServer::Start(std::move(listeners), StoreMember::OfThisProcess("job", 0, kWorldSize)).value();
  }

  FileDescriptor Socket() const { return ConnectTcp("127.0.0.1", port_, Soon()).value(); }

  absl::StatusOr<std::unique_ptr<Store>> Connect(int rank, const std::string& job = "job",
                                                 int world_size = kWorldSize) const {
    return Store::Connect(Socket(), StoreMember::OfThisProcess(job, rank, world_size), Soon());
  }

  static absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

  // Sends bytes as a stranger; returns whether the server closed the connection because of them.
  bool IsRefused(const std::string& bytes) const {
    const FileDescriptor socket = Socket();
    EXPECT_OK(SendAll(socket.get(), bytes, Soon()));
    char byte;
    return absl::IsUnavailable(ReceiveAll(socket.get(), absl::MakeSpan(&byte, 1), Soon()));
  }

  int port_ = 0;
  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreTest, GetGivesWhatAnotherRankSet) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(const auto b, Connect(1));
  const std::string large(kMaxStoreValueBytes, 'x');
  EXPECT_OK(a->Set("key", "value"));
  EXPECT_OK(a->Set("large", large));
  EXPECT_THAT(b->Get("key", Soon()), IsOkAndHolds("value"));
  EXPECT_THAT(b->Get("large", Soon()), IsOkAndHolds(large));
  EXPECT_OK(b->Set("key", ""));
  EXPECT_THAT(a->Get("key", Soon()), IsOkAndHolds(""));
}

TEST_F(StoreTest, GetWaitsUntilTheKeyIsSet) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(const auto b, Connect(1));
  std::thread waiter([&b] { EXPECT_THAT(b->Get("key", Soon()), IsOkAndHolds("value")); });
  EXPECT_OK(a->Set("key", "value"));
  waiter.join();
}

TEST_F(StoreTest, GetGivesUpAtItsDeadlineAndTheStoreStaysUsable) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(0));
  EXPECT_THAT(store->Get("key", SteadyNow() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "store: \"key\" is not set"));
  EXPECT_THAT(store->Get("key", absl::InfinitePast()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_OK(store->Set("key", "value"));
  EXPECT_THAT(store->Get("key", absl::InfinitePast()), IsOkAndHolds("value"));
}

TEST_F(StoreTest, AddCountsFromAllRanks) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(const auto b, Connect(1));
  EXPECT_THAT(a->Add("n", 5), IsOkAndHolds(5));
  EXPECT_THAT(b->Add("n", -7), IsOkAndHolds(-2));
  EXPECT_THAT(a->Get("n", Soon()), IsOkAndHolds("-2"));
  EXPECT_OK(a->Set("n", "word"));
  EXPECT_THAT(a->Add("n", 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a number")));
}

TEST_F(StoreTest, KeysAndValuesBeyondTheLimitsAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(0));
  EXPECT_THAT(store->Set(std::string(kMaxStoreKeyBytes + 1, 'k'), ""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store->Set("k", std::string(kMaxStoreValueBytes + 1, 'v')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1048577")));
  EXPECT_OK(store->Set("k", "v"));
}

TEST_F(StoreTest, OnlyTheJobsOwnRanksAreTakenEachOnce) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(1));
  EXPECT_THAT(Connect(kWorldSize), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Connect(2, "job", 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 has world size 3, rank 2 has 4")));
}

// The same process, connecting again, may wait for its former group to be closed; another process can never be the
// rank.
TEST_F(StoreTest, ARankThatIsHereAlreadyIsRefusedNamingBothProcesses) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(1));
  EXPECT_THAT(Connect(1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 is here already")));
  const StoreMember other = {.job = "job", .rank = 1, .world_size = kWorldSize, .host = "elsewhere", .pid = 77};
  EXPECT_THAT(Store::Connect(Socket(), other, Soon()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       testing::AllOf(HasSubstr(absl::StrCat("rank 1 of 3, pid ", getpid(), " on ")),
                                      HasSubstr("rank 1 of 3, pid 77 on elsewhere"))));
  // In another container, with the same host name and pid.
  StoreMember contained = StoreMember::OfThisProcess("job", 1, kWorldSize);
  ++contained.process;
  EXPECT_THAT(Store::Connect(Socket(), contained, Soon()), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(StoreTest, AnotherJobIsToldWhoseStoreThisIs) {
  EXPECT_THAT(
      Connect(0, "other"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               testing::AllOf(HasSubstr(absl::StrCat("this is job \"job\" (rank 0 of 3, pid ", getpid(), " on ")),
                              HasSubstr("not \"other\""))));
  ASSERT_OK_AND_ASSIGN(const StoreMember server,
                       Store::WhoServes(Socket(), StoreMember::OfThisProcess("other", 0, 2), Soon()));
  EXPECT_EQ(server.job, "job");
  EXPECT_EQ(server.pid, getpid());
  EXPECT_OK(Connect(0)) << "a question is no hello";
}

// The client does not trust a server that answers for another job than the requested one, even if it accepts.
TEST_F(StoreTest, AServerOfAnotherJobIsNotJoinedEvenIfItAccepts) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  std::thread impostor([&listener] {
    FileDescriptor socket;
    while (!socket.ok()) socket = FileDescriptor(accept(listener.get(), nullptr, nullptr));
    const StoreMember self = {.job = "another", .rank = 0, .world_size = kWorldSize, .host = "h", .pid = 5};
    EXPECT_OK(SendAll(socket.get(), EncodeStoreFrame(self.ToFrame(0)), Soon()));
    char rest[1 << 10];
    while (recv(socket.get(), rest, sizeof(rest), 0) > 0) {
    }
  });
  const int port = ListeningPort(listener.get()).value();
  EXPECT_THAT(
      Store::Connect(ConnectTcp("127.0.0.1", port, Soon()).value(), StoreMember::OfThisProcess("job", 1, 3), Soon()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("this is job \"another\" (rank 0 of 3, pid 5")));
  impostor.join();
}

TEST(StoreMemberTest, AHelloGoesToAFrameAndBackAndAMalformedOneIsRefused) {
  const StoreMember member = {
      .job = "run x", .rank = 3, .world_size = 8, .host = "host", .pid = 42, .process = ~uint64_t{0}};
  ASSERT_OK_AND_ASSIGN(const StoreMember back, StoreMember::FromFrame(member.ToFrame(6)));
  EXPECT_EQ(back.job, member.job);
  EXPECT_EQ(back.ToString(), "rank 3 of 8, pid 42 on host");
  EXPECT_TRUE(back.IsSameProcess(member));
  for (const char* value : {"", "8", "8\n42", "8\n42\nhost", "x\n42\nhost\n1", "8\nx\nhost\n1", "8\n42\nhost\nx"}) {
    EXPECT_THAT(StoreMember::FromFrame({.kind = 6, .number = 3, .key = "run x", .value = value}),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << value;
  }
  EXPECT_THAT(StoreMember::FromFrame({.number = -1, .value = "8\n42\nhost\n1"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(StoreTest, BadInputIsRefusedAndHarmsNoClient) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(0));
  EXPECT_TRUE(IsRefused("GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
  EXPECT_TRUE(IsRefused(std::string(100, '\xff')));
  std::string huge = EncodeStoreFrame({.kind = 2, .key = "k", .value = "v"});
  huge[15] = '\x7f';  // the top byte of the value's size
  EXPECT_TRUE(IsRefused(huge));
  // A frame that never ends, and a silent connection, only wait.
  const FileDescriptor silent = Socket();
  const FileDescriptor partial = Socket();
  EXPECT_OK(SendAll(partial.get(), EncodeStoreFrame({.kind = 2, .key = "k", .value = "v"}).substr(0, 20), Soon()));
  EXPECT_OK(store->Set("key", "value"));
}

TEST_F(StoreTest, StrangersAreToldToSayHelloFirst) {
  const FileDescriptor socket = Socket();
  EXPECT_OK(SendAll(socket.get(), EncodeStoreFrame({.kind = 2, .key = "k", .value = "v"}), Soon()));
  std::string header(kStoreHeaderBytes, '\0');
  EXPECT_OK(ReceiveAll(socket.get(), absl::MakeSpan(header), Soon()));
  EXPECT_THAT(StoreBodyBytes(header), IsOkAndHolds(std::string("the first request must be a hello").size()));
}

TEST_F(StoreTest, ManyStrangersDoNotKeepRanksOut) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(Socket());
  }
  EXPECT_OK(Connect(0));
}

// A rank whose process has no descriptor left still takes its peers, as long as a stranger holds one.
TEST_F(StoreTest, ARankGetsTheDescriptorOfAStrangerWhenNoneIsLeft) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(Socket());
  const FileDescriptor answered = Socket();  // all before it are accepted by the time of its answer
  ASSERT_OK(SendAll(answered.get(), EncodeStoreFrame({.kind = static_cast<uint32_t>(StoreRequest::kWho)}), Soon()));
  char byte;
  ASSERT_OK(ReceiveAll(answered.get(), absl::MakeSpan(&byte, 1), Soon()));
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit all = limit;
  limit.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<FileDescriptor> files;
  do {
    files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (files.back().ok());
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  EXPECT_OK(Store::Connect(std::move(socket), StoreMember::OfThisProcess("job", 1, kWorldSize), Soon()).status());
  setrlimit(RLIMIT_NOFILE, &all);
}

TEST_F(StoreTest, AGatherGivesEveryRankTheBlobsOfAll) {
  std::vector<std::string> blobs = {"zero", "", std::string(kMaxStoreValueBytes, '2')};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::unique_ptr<Store> store = Connect(rank).value();
      for (const char* key : {"first", "second"}) {
        EXPECT_THAT(store->Gather(key, blobs[rank], Soon()), IsOkAndHolds(blobs));
      }
      EXPECT_OK(store->Leave());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(StoreTest, AGatherNamesTheMissingRanksAtItsDeadline) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(1));
  EXPECT_THAT(a->Gather("key", "blob", SteadyNow() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "store: missing ranks: 0, 2"));
  EXPECT_OK(a->Set("key", "value")) << "the store stays usable";
}

TEST_F(StoreTest, AGatherEndsWhenARankIsGone) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(auto b, Connect(1));
  b.reset();
  EXPECT_THAT(a->Gather("key", "", Soon()), StatusIs(absl::StatusCode::kUnavailable, "store: rank 1 of 3 has gone"));
}

TEST_F(StoreTest, AWatchWithoutSenseIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(0));
  EXPECT_THAT(store->Watch(absl::Seconds(1), absl::Seconds(1)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store->Watch(absl::ZeroDuration(), absl::Seconds(1)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store->Watch(absl::Seconds(1), absl::Hours(25)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a silence that is longer")));
}

// Like a rank of another job that was given the same address and the same name.
TEST(StoreTokenTest, OnlyARankWithTheJobsTokenIsTakenAndTheTokenIsNeverShown) {
  FileDescriptor listener = ListenTcp("127.0.0.1", 0).value();
  const int port = ListeningPort(listener.get()).value();
  std::vector<FileDescriptor> listeners;
  listeners.push_back(std::move(listener));
  StoreMember self = StoreMember::OfThisProcess("job", 0, 3);
  self.token_digest = StoreMember::DigestOfToken("secret");
  ASSERT_OK_AND_ASSIGN(const auto server, StoreServer::Start(std::move(listeners), self));
  const absl::Time soon = SteadyNow() + absl::Seconds(20);
  const auto connect = [&](int rank, const std::string& token) {
    StoreMember member = StoreMember::OfThisProcess("job", rank, 3);
    member.token_digest = StoreMember::DigestOfToken(token);
    return Store::Connect(ConnectTcp("127.0.0.1", port, soon).value(), member, soon);
  };
  EXPECT_THAT(connect(1, ""), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("has no FSDP_JOB_TOKEN")));
  const auto wrong = connect(1, "guess");
  EXPECT_THAT(wrong, StatusIs(absl::StatusCode::kUnauthenticated,
                              testing::AllOf(HasSubstr("rank 1 of 3, pid "), HasSubstr("another FSDP_JOB_TOKEN"),
                                             testing::Not(HasSubstr("secret")), testing::Not(HasSubstr("guess")),
                                             testing::Not(HasSubstr(self.token_digest)))));
  ASSERT_OK_AND_ASSIGN(const auto store, connect(1, "secret"));
  EXPECT_EQ(store->server().token_digest, "");
}

TEST(StoreGatherTest, AMalformedTextOfBlobsIsRefused) {
  StoreGather gather(2);
  EXPECT_EQ(gather.MissingRanks(), (std::vector<int>{0, 1}));
  gather.Add(1, "replaced");
  gather.Add(1, "one");
  gather.Add(0, "");
  ASSERT_TRUE(gather.is_complete());
  const std::string text = gather.Encode();
  EXPECT_EQ(text.size(), gather.encoded_bytes());
  EXPECT_THAT(StoreGather::Decode(text, 2), IsOkAndHolds(std::vector<std::string>{"", "one"}));
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(StoreGather::Decode(text.substr(0, size), 2), StatusIs(absl::StatusCode::kDataLoss)) << size;
  }
  EXPECT_THAT(StoreGather::Decode(text + "x", 2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 bytes remain")));
  EXPECT_THAT(StoreGather::Decode(std::string(4, '\xff'), 1), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(StoreTest, WaitingEndsWhenARankIsGone) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(auto b, Connect(1));
  EXPECT_OK(b->Set("set", "before"));
  b.reset();
  EXPECT_THAT(a->Get("key", Soon()), StatusIs(absl::StatusCode::kUnavailable, "store: rank 1 of 3 has gone"));
  EXPECT_THAT(a->Get("set", Soon()), IsOkAndHolds("before"));
}

TEST_F(StoreTest, LeavingIsNotBeingGone) {
  ASSERT_OK_AND_ASSIGN(const auto a, Connect(0));
  ASSERT_OK_AND_ASSIGN(auto b, Connect(1));
  EXPECT_OK(b->Leave());
  b.reset();
  EXPECT_THAT(server_->AwaitLeave(SteadyNow() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "store: 1 of 2 ranks have left"));
  EXPECT_OK(a->Leave());
  EXPECT_OK(server_->AwaitLeave(Soon()));
}

TEST_F(StoreTest, AServerThatIsGoneIsAnErrorAtOnce) {
  ASSERT_OK_AND_ASSIGN(const auto store, Connect(0));
  std::thread closer([this] { server_.reset(); });
  EXPECT_THAT(store->Get("key", Soon()), StatusIs(absl::StatusCode::kUnavailable));
  closer.join();
  EXPECT_THAT(store->Set("key", "value"), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(StoreFrameTest, FramesComeOutOfAnyPieces) {
  const StoreFrame frame = {.kind = 3, .number = -5, .key = "key", .value = "value"};
  const std::string bytes = EncodeStoreFrame(frame);
  std::string buffer;
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    buffer += bytes[i];
    ASSERT_OK_AND_ASSIGN(const auto none, TakeStoreFrame(buffer));
    ASSERT_FALSE(none.has_value());
  }
  buffer += bytes.back();
  buffer += "rest";
  ASSERT_OK_AND_ASSIGN(const auto whole, TakeStoreFrame(buffer));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->kind, 3u);
  EXPECT_EQ(whole->number, -5);
  EXPECT_EQ(whole->key, "key");
  EXPECT_EQ(whole->value, "value");
  EXPECT_EQ(buffer, "rest");
}

// Every byte and every bit of a frame, damaged: the parser accepts it, waits for more, or refuses it, and holds no more
// bytes than it was given.
TEST(StoreFrameTest, DamagedFramesAreTakenAwaitedOrRefused) {
  const std::string bytes = EncodeStoreFrame({.kind = 2, .number = 1, .key = "key", .value = "value"});
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string buffer = bytes;
    buffer[bit / 8] = static_cast<char>(buffer[bit / 8] ^ (1 << bit % 8));
    const auto frame = TakeStoreFrame(buffer);
    if (frame.ok() && frame->has_value()) {
      EXPECT_LE((*frame)->key.size() + (*frame)->value.size() + buffer.size(), bytes.size());
    } else if (!frame.ok()) {
      EXPECT_THAT(frame, StatusIs(absl::StatusCode::kInvalidArgument));
    }
  }
}

TEST(SocketTest, LocalSocketsHaveOneListenerAndNoFile) {
  const std::string name = absl::StrCat("fsdp-test-", getpid());
  EXPECT_THAT(ConnectLocal(name), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK_AND_ASSIGN(FileDescriptor listener, ListenLocal(name));
  EXPECT_THAT(ListenLocal(name), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
  EXPECT_THAT(ListeningPort(listener.get()), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(const FileDescriptor socket, ConnectLocal(name));
  EXPECT_TRUE(SameUser(socket.get()));
  listener.Close();
  EXPECT_THAT(ConnectLocal(name), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace fsdp
