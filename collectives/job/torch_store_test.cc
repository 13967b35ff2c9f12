// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/torch_store.h"

#include <sys/socket.h>

#include <functional>
#include <random>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/fake_torch_store.h"
#include "fsdp/collectives/job/socket.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

// The bytes that a client of torch 2.15 sends, and the server's replies. The literals are split after each \x.. that is
// followed by a letter of a hexadecimal number.
const std::string kValidate("\x00\xce\xf7\x85\x3c", 5);
const std::string kSet(
    "\x01\x06\x00\x00\x00\x00\x00\x00\x00"
    "fsdp/k"
    "\x05\x00\x00\x00\x00\x00\x00\x00"
    "value",
    28);
const std::string kWait(
    "\x06\x01\x00\x00\x00\x00\x00\x00\x00"
    "\x06\x00\x00\x00\x00\x00\x00\x00"
    "fsdp/k",
    23);
const std::string kGet(
    "\x03\x06\x00\x00\x00\x00\x00\x00\x00"
    "fsdp/k",
    15);
const std::string kIsSet("\x00", 1);
const std::string kValue(
    "\x05\x00\x00\x00\x00\x00\x00\x00"
    "value",
    13);

// A server for one connection: runs `serve` on it and closes it.
class OneConnection {
 public:
  explicit OneConnection(std::function<void(int fd)> serve) : listener_(ListenTcp("127.0.0.1", 0).value()) {
    thread_ = std::thread([this, serve = std::move(serve)] {
      FileDescriptor socket;
      while (!socket.ok()) socket = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
      serve(socket.get());
    });
  }
  ~OneConnection() { thread_.join(); }

  TorchStore Client() const {
    return TorchStore::Connect("127.0.0.1", ListeningPort(listener_.get()).value(), Soon()).value();
  }

 private:
  FileDescriptor listener_;
  std::thread thread_;
};

std::string Receive(int fd, size_t size) {
  std::string bytes(size, '?');
  EXPECT_OK(ReceiveAll(fd, absl::MakeSpan(bytes), Soon()));
  return bytes;
}

// The result of Get if the server replies `reply` and then closes the connection.
absl::StatusOr<std::string> GetWithReply(const std::string& reply) {
  const OneConnection server([&](int fd) {
    Receive(fd, kValidate.size() + kWait.size());
    EXPECT_OK(SendAll(fd, reply, Soon()));
    shutdown(fd, SHUT_WR);
    char rest[64];
    while (!absl::IsUnavailable(ReceiveAll(fd, absl::MakeSpan(rest), Soon()))) {
    }
  });
  return server.Client().Get("fsdp/k", Soon());
}

TEST(TorchStoreTest, RequestsAreTheBytesOfTorchsOwnClient) {
  const OneConnection server([](int fd) {
    EXPECT_EQ(Receive(fd, kValidate.size()), kValidate);
    EXPECT_EQ(Receive(fd, kSet.size()), kSet);
    EXPECT_EQ(Receive(fd, kWait.size()), kWait);
    EXPECT_OK(SendAll(fd, kIsSet, Soon()));
    EXPECT_EQ(Receive(fd, kGet.size()), kGet);
    EXPECT_OK(SendAll(fd, kValue, Soon()));
  });
  TorchStore store = server.Client();
  EXPECT_OK(store.Set("fsdp/k", "value", Soon()));
  EXPECT_THAT(store.Get("fsdp/k", Soon()), IsOkAndHolds("value"));
}

TEST(TorchStoreTest, GetWaitsUntilAnotherClientHasSetTheKey) {
  const FakeTorchStore server;
  std::thread waiter([&] {
    TorchStore store = TorchStore::Connect("127.0.0.1", server.port(), Soon()).value();
    EXPECT_THAT(store.Get("key", Soon()), IsOkAndHolds("value"));
  });
  TorchStore store = TorchStore::Connect("127.0.0.1", server.port(), Soon()).value();
  EXPECT_OK(store.Set("key", "value", Soon()));
  waiter.join();
}

TEST(TorchStoreTest, AKeyThatIsNotSetIsADeadline) {
  const FakeTorchStore server;
  TorchStore store = TorchStore::Connect("127.0.0.1", server.port(), Soon()).value();
  EXPECT_THAT(store.Get("key", SteadyNow() + absl::Milliseconds(20)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(TorchStoreTest, HostileRepliesAreRefusedAndNothingIsAllocatedForThem) {
  EXPECT_THAT(GetWithReply("\x01"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("replied 1 to a wait")));
  EXPECT_THAT(GetWithReply("HTTP/1.1 400 Bad Request\r\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("replied 72 to a wait, expected 0")));
  EXPECT_THAT(GetWithReply(kIsSet + std::string(8, '\xff')),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a value of 18446744073709551615 bytes")));
  EXPECT_THAT(GetWithReply(kIsSet + std::string("\x01\x10\0\0\0\0\0\0", 8)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4097 bytes, expected at most 4096")));
  EXPECT_THAT(GetWithReply(kIsSet + std::string(8, '\0')), IsOkAndHolds(""));
}

TEST(TorchStoreTest, RepliesThatAreCutShortAreErrors) {
  const std::string whole = kIsSet + kValue;
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(GetWithReply(whole.substr(0, size)), StatusIs(absl::StatusCode::kUnavailable)) << size;
  }
  EXPECT_THAT(GetWithReply(whole), IsOkAndHolds("value"));
}

// A good reply with changed, cut or added bytes, and random bytes.
std::string HostileReply(std::mt19937& random) {
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  std::string reply = below(4) == 0 ? std::string() : kIsSet + kValue;
  for (size_t changes = below(4); changes > 0 && !reply.empty(); --changes) {
    reply[below(reply.size())] = static_cast<char>(below(256));
  }
  if (below(2) == 0) reply.resize(below(reply.size() + 1));
  for (size_t added = below(2) * below(6000); added > 0; --added) reply.push_back(static_cast<char>(below(256)));
  return reply;
}

// For any reply, Get returns, and its value does not exceed the limit. The sizes in a reply are mostly beyond the
// limit, so a Get that trusted them would run out of memory.
TEST(TorchStoreTest, ChangedRepliesAreErrorsOrShortValues) {
  std::mt19937 random(1);
  int values = 0;
  for (int round = 0; round < 2000; ++round) {
    const absl::StatusOr<std::string> value = GetWithReply(HostileReply(random));
    if (value.ok()) {
      ++values;
      EXPECT_LE(value->size(), kMaxTorchValueBytes);
    } else {
      EXPECT_TRUE(absl::IsDataLoss(value.status()) || absl::IsUnavailable(value.status())) << value.status();
    }
  }
  EXPECT_GT(values, 100) << "the replies do not get far";
}

}  // namespace
}  // namespace fsdp
