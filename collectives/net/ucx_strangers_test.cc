// SPDX-License-Identifier: Apache-2.0
//
// The ports that UCX opens, and processes that connect to them although they are no ranks.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/net/ucx_transport_testutil.h"
#include "fsdp/collectives/net/ucx_worker.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using UcxStrangersTest = UcxTransportTest;

struct Listener {
  std::string address;
  int port = 0;
};

// The ports of this process: sockets in state 0A of /proc/net/tcp whose inode is one of our descriptors.
std::vector<Listener> Listeners() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<Listener> listeners;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() > 9 && fields[3] == "0A" && inodes.count(fields[9]) > 0) {
      const auto ip = static_cast<uint32_t>(std::stoul(fields[1].substr(0, 8), nullptr, 16));  // its bytes in memory
      listeners.push_back({absl::StrCat(ip & 255, ".", ip >> 8 & 255, ".", ip >> 16 & 255, ".", ip >> 24),
                           std::stoi(fields[1].substr(9), nullptr, 16)});
    }
  }
  return listeners;
}

// A transport of each of `size` ranks. While the ranks meet, when all ports are open, rank 0 calls `intrude`.
absl::Status OnRanksWithStrangers(int size, const std::function<absl::Status()>& intrude,
                                  const std::function<absl::Status(Transport& transport)>& rank_main) {
  return RunRanks(size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    int gathers = 0;
    const auto gather = [&](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
      FSDP_ASSIGN_OR_RETURN(std::vector<std::string> blobs, meeting->AllGatherObject(blob));
      // The second gather is of the offers: each rank has a worker.
      if (++gathers == 2 && meeting->rank() == 0) {
        FSDP_RETURN_IF_ERROR(intrude());
      }
      return blobs;
    };
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                          CreateUcxTransport(meeting->rank(), size, {.place = "here", .timeout = kTimeout}, gather));
    FSDP_RETURN_IF_ERROR(rank_main(*transport));
    return meeting->AllGatherObject("").status();
  });
}

// Connects to every port once for each of `sizes` and sends so many random bytes.
absl::Status SendRandomBytes(const std::vector<size_t>& sizes, std::vector<FileDescriptor>& strangers) {
  std::mt19937 random(11);
  const std::vector<Listener> listeners = Listeners();
  EXPECT_FALSE(listeners.empty());
  for (const auto& [address, port] : listeners) {
    for (const size_t nbytes : sizes) {
      FSDP_ASSIGN_OR_RETURN(FileDescriptor stranger, ConnectTcp(address, port, SteadyNow() + absl::Seconds(10)));
      std::string bytes(nbytes, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      // The other end may close immediately, at the first bytes that it does not understand.
      SendAll(stranger.get(), bytes, SteadyNow() + absl::Seconds(10)).IgnoreError();
      strangers.push_back(std::move(stranger));
    }
  }
  return absl::OkStatus();
}

TEST_F(UcxStrangersTest, RandomBytesOnEveryPortDisturbNothing) {
  std::vector<FileDescriptor> strangers;
  EXPECT_OK(OnRanksWithStrangers(
      3,
      [&] {
        return SendRandomBytes({0, 1, 8, 100, 5000}, strangers);
      },
      [](Transport& transport) -> absl::Status {
        for (int i = 0; i < 5; ++i) {
          FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 100000));
        }
        return absl::OkStatus();
      }));
}

TEST_F(UcxStrangersTest, AConnectionThatSendsTooLittleWhileTheRanksMeetIsClosed) {
  std::vector<FileDescriptor> strangers;
  EXPECT_OK(OnRanksWithStrangers(
      2,
      [&] {
        return SendRandomBytes({1, 7, 7}, strangers);
      },
      [&](Transport& transport) -> absl::Status {
        FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 5000));
        if (transport.rank() != 0) return absl::OkStatus();
        for (const FileDescriptor& stranger : strangers) {
          char byte;
          EXPECT_THAT(ReceiveAll(stranger.get(), absl::MakeSpan(&byte, 1), SteadyNow() + absl::Seconds(10)),
                      StatusIs(absl::StatusCode::kUnavailable));
        }
        return absl::OkStatus();
      }));
}

// A process that connects a thousand times to the ports that it is given, and holds the connections until it ends.
class IdleStranger {
 public:
  IdleStranger() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_), 0);
    pid_ = fork();
    if (pid_ == 0) Run(pair_[1]);
    close(pair_[1]);
  }
  ~IdleStranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(pair_[0]);
  }

  void Connect(const std::vector<Listener>& listeners) {
    std::vector<sockaddr_in> addresses(kMost);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const Listener& listener = listeners[i % listeners.size()];
      addresses[i].sin_family = AF_INET;
      addresses[i].sin_port = htons(static_cast<uint16_t>(listener.port));
      inet_pton(AF_INET, listener.address.c_str(), &addresses[i].sin_addr);
    }
    const auto nbytes = static_cast<ssize_t>(sizeof(addresses[0]) * addresses.size());
    EXPECT_EQ(write(pair_[0], addresses.data(), nbytes), nbytes);
    int connections = 0;
    EXPECT_EQ(read(pair_[0], &connections, sizeof(connections)), static_cast<ssize_t>(sizeof(connections)));
    EXPECT_EQ(connections, kMost);
  }

 private:
  static constexpr int kMost = 1000;

  // Between fork and the end of a process with threads only system calls are safe.
  [[noreturn]] static void Run(int fd) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    sockaddr_in addresses[kMost];
    if (recv(fd, addresses, sizeof(addresses), MSG_WAITALL) != sizeof(addresses)) _exit(1);
    int connections = 0;
    for (const sockaddr_in& address : addresses) {
      const int connection = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      if (connection < 0) break;
      connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
      ++connections;
    }
    if (write(fd, &connections, sizeof(connections)) < 0) _exit(1);
    while (true) pause();
  }

  int pair_[2] = {-1, -1};
  int pid_ = -1;
};

// Lowers the limit of this process, as "ulimit -n" does.
class ScopedDescriptorLimit {
 public:
  explicit ScopedDescriptorLimit(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit = {.rlim_cur = most, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~ScopedDescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

int OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<int>(std::distance(begin(descriptors), end(descriptors)));
}

// UCX accepts connections without a limit, and a save needs descriptors.
TEST_F(UcxStrangersTest, AThousandIdleConnectionsLeaveTheDescriptorsToTheJob) {
  IdleStranger stranger;
  const ScopedDescriptorLimit limit(256);
  std::vector<Listener> ports;
  const auto note_ports = [&] {
    ports = Listeners();
    return ports.empty() ? absl::NotFoundError("no port was open while the ranks met") : absl::OkStatus();
  };
  EXPECT_OK(OnRanksWithStrangers(2, note_ports, [&](Transport& transport) -> absl::Status {
    FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 5000));
    const int before = OpenDescriptors();
    if (transport.rank() == 0) stranger.Connect(ports);
    // Time for UCX to accept the connections, in its progress or in its own thread.
    for (int i = 0; i < 20; ++i) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 5000));
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_LE(OpenDescriptors(), before + 3) << "the two ranks count at the same time";
    return absl::OkStatus();
  }));
}

// UCX closes its port when no descriptor is left, and a rank that comes later finds no port.
TEST_F(UcxStrangersTest, AThousandIdleConnectionsWhileTheRanksMeetEndNoJoin) {
  IdleStranger stranger;
  const ScopedDescriptorLimit limit(256);
  const auto flood = [&] {
    const std::vector<Listener> ports = Listeners();
    if (ports.empty()) return absl::NotFoundError("no port was open while the ranks met");
    const int before = OpenDescriptors();
    stranger.Connect(ports);
    absl::SleepFor(absl::Milliseconds(200));  // UCX's own thread accepts connections too
    EXPECT_LE(OpenDescriptors(), before + 8) << "the other rank connects meanwhile";
    return absl::OkStatus();
  };
  EXPECT_OK(OnRanksWithStrangers(2, flood, [](Transport& transport) -> absl::Status {
    for (int i = 0; i < 5; ++i) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 100000));
    }
    return absl::OkStatus();
  }));
}

TEST_F(UcxStrangersTest, NoPortIsOpenWhenTheRanksHaveMet) {
  EXPECT_OK(OnRanks(3, [&](Transport& transport, ProcessGroup& meeting) -> absl::Status {
    FSDP_RETURN_IF_ERROR(meeting.AllGatherObject("").status());
    for (const Listener& open : Listeners()) {
      ADD_FAILURE() << open.address << ":" << open.port << " is open in rank " << transport.rank();
    }
    return ExchangeTexts(transport, 100000);
  }));
}

// A process with a worker's address and the layout of tags, but not the nonce, cannot pass for a rank.
TEST_F(UcxStrangersTest, AStrangersMessagesMatchNothing) {
  std::unique_ptr<UcxWorker> stranger;
  std::string lie(1024, 'x');
  std::vector<UcxMessage> messages(4);
  const auto lie_to = [&](const std::string& address) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, UcxContext::Create(/*interface=*/""));
    FSDP_ASSIGN_OR_RETURN(stranger, UcxWorker::Create(std::move(context)));
    FSDP_RETURN_IF_ERROR(stranger->Connect({address}, [](int, std::string_view) {}));
    for (uint64_t kind = 0; kind < 4; ++kind) {
      stranger->Send(Bytes(lie), 1024, kind << 16 | 1, messages[kind]);
    }
    for (int i = 0; i < 1000; ++i) stranger->Progress();
    return absl::OkStatus();
  };
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    // The stranger comes while the ports are open.
    const auto gather = [&](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
      FSDP_ASSIGN_OR_RETURN(std::vector<std::string> blobs, meeting->AllGatherObject(blob));
      if (meeting->rank() == 0 && blobs[0].size() > 40) {
        FSDP_RETURN_IF_ERROR(lie_to(blobs[0].substr(blobs[0].find('\n', blobs[0].find('\n', 16) + 1) + 1)));
      }
      return blobs;
    };
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                          CreateUcxTransport(meeting->rank(), 2, {.place = "here", .timeout = kTimeout}, gather));
    for (int i = 0; i < 10; ++i) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(*transport, 1024));
      if (meeting->rank() == 0) stranger->Progress();
    }
    return transport->CheckNobodyGaveUp(kWhat);
  }));
}

}  // namespace
}  // namespace fsdp
