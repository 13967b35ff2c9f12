// SPDX-License-Identifier: Apache-2.0
//
// The transport over UCX, between threads of this process, which meet through a local group.
#include "fsdp/collectives/net/ucx_transport.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/net/ucx_worker.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);
constexpr CollectiveId kWhat = {.op = CollectiveOp::kAllGather, .sequence = 7};

class UcxTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  }

  static absl::Status OnRanks(
      int size, const std::function<absl::Status(Transport& transport, ProcessGroup& meeting)>& rank_main) {
    return RunRanks(size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                            CreateUcxTransport(meeting->rank(), size, {.place = "here", .timeout = kTimeout},
                                               [&](std::string_view blob) { return meeting->AllGatherObject(blob); }));
      return rank_main(*transport, *meeting);
    });
  }
};

std::byte* Bytes(std::string& s) { return reinterpret_cast<std::byte*>(s.data()); }

// Every rank sends every other one its own text of `nbytes` bytes.
absl::Status ExchangeTexts(Transport& transport, size_t nbytes) {
  const auto text = [&](int from, int to) {
    std::string all(nbytes, static_cast<char>('a' + from));
    for (size_t i = 0; i < nbytes; i += 1000) all[i] = static_cast<char>('A' + to + i / 1000 % 7);
    return all;
  };
  std::vector<std::string> out(static_cast<size_t>(transport.size()));
  std::vector<std::string> in(static_cast<size_t>(transport.size()), std::string(nbytes, '-'));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    out[peer] = text(transport.rank(), peer);
    sends.push_back({peer, Bytes(out[peer]), static_cast<int64_t>(nbytes)});
    receives.push_back({peer, Bytes(in[peer]), static_cast<int64_t>(nbytes)});
  }
  FSDP_RETURN_IF_ERROR(transport.Exchange(sends, receives, kWhat, kTimeout));
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank() && in[peer] != text(peer, transport.rank())) {
      return absl::DataLossError(absl::StrCat("other bytes from rank ", peer));
    }
  }
  return absl::OkStatus();
}

TEST_F(UcxTransportTest, CarriesMessagesOfAnySize) {
  EXPECT_OK(OnRanks(3, [](Transport& transport, ProcessGroup&) -> absl::Status {
    for (const size_t nbytes : {size_t{1}, size_t{32}, size_t{70000}, size_t{1} << 20, (size_t{5} << 20) + 3}) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, nbytes));
    }
    return absl::OkStatus();
  }));
}

TEST_F(UcxTransportTest, MessagesArriveInTheOrderInWhichTheyWereSent) {
  EXPECT_OK(OnRanks(2, [](Transport& transport, ProcessGroup&) -> absl::Status {
    std::vector<int> out(100);
    std::vector<int> in(100, -1);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int i = 0; i < 100; ++i) {
      out[i] = i;
      sends.push_back({1 - transport.rank(), reinterpret_cast<std::byte*>(&out[i]), sizeof(int)});
      receives.push_back({1 - transport.rank(), reinterpret_cast<std::byte*>(&in[i]), sizeof(int)});
    }
    FSDP_RETURN_IF_ERROR(transport.Exchange(sends, receives, kWhat, kTimeout));
    return in == out ? absl::OkStatus() : absl::DataLossError("another order");
  }));
}

// Steps of 3 MB, with memory for two of them, each a message of every rank to every other one; `log` records the calls.
Pipeline StepsOfTexts(Transport& transport, int64_t steps, std::vector<std::string>& slots, std::string& log) {
  constexpr size_t kBytes = 3'000'000;
  slots.assign(static_cast<size_t>(kStepsUnderWay * (1 + transport.size())), std::string(kBytes, '-'));
  const auto slot = [&transport, &slots](int64_t step, int row) -> std::string& {
    return slots[static_cast<size_t>(step % kStepsUnderWay * (1 + transport.size()) + row)];
  };
  const auto letter = [](int64_t step, int rank) { return static_cast<char>('a' + (step + 7 * rank) % 26); };
  const auto begin = [=, &transport, &log](int64_t step) {
    absl::StrAppend(&log, "b", step, " ");
    Messages messages;
    std::string& out = slot(step, transport.size());
    out.assign(kBytes, letter(step, transport.rank()));
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == transport.rank()) continue;
      messages.sends.push_back({peer, Bytes(out), kBytes});
      messages.receives.push_back({peer, Bytes(slot(step, peer)), kBytes});
    }
    return messages;
  };
  const auto end = [=, &transport, &log](int64_t step) {
    absl::StrAppend(&log, "e", step, " ");
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank() && slot(step, peer) != std::string(kBytes, letter(step, peer))) {
        return absl::DataLossError(absl::StrCat("step ", step, ": other bytes from rank ", peer));
      }
    }
    return absl::OkStatus();
  };
  return {.steps = steps, .begin = begin, .end = end};
}

TEST_F(UcxTransportTest, TheStepsOfAPipelineOverlapByOne) {
  EXPECT_OK(OnRanks(3, [](Transport& transport, ProcessGroup&) -> absl::Status {
    std::vector<std::string> slots;
    std::string log;
    const Pipeline pipeline = StepsOfTexts(transport, 5, slots, log);
    FSDP_RETURN_IF_ERROR(transport.ExchangeInSteps(pipeline, kWhat, kTimeout));
    EXPECT_EQ(log, "b0 b1 e0 b2 e1 b3 e2 b4 e3 e4 ");
    return ExchangeTexts(transport, 32);
  }));
}

TEST_F(UcxTransportTest, AnErrorInAStepEndsThePipelineOfAllRanks) {
  const absl::Status status = OnRanks(2, [](Transport& transport, ProcessGroup&) -> absl::Status {
    std::vector<std::string> slots;
    std::string log;
    Pipeline pipeline = StepsOfTexts(transport, 5, slots, log);
    if (transport.rank() == 1) {
      pipeline.end = [end = pipeline.end](int64_t step) -> absl::Status {
        return step == 2 ? absl::InternalError("no more") : end(step);
      };
    }
    const absl::Status exchanged = transport.ExchangeInSteps(pipeline, kWhat, kTimeout);
    if (transport.rank() == 1) {
      EXPECT_EQ(exchanged, absl::InternalError("no more"));
      transport.Tell({.kind = Notice::Kind::kGaveUp, .sequence = kWhat.sequence, .reason = exchanged});
    } else {
      EXPECT_THAT(exchanged, StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 (here) gave up: no more")));
    }
    transport.AwaitSends();  // before the slots are freed
    return absl::OkStatus();
  });
  EXPECT_OK(status);
}

TEST_F(UcxTransportTest, AMessageOfAnotherSizeIsAnError) {
  for (const int64_t sent : {3, 9}) {
    const absl::Status status = OnRanks(2, [&](Transport& transport, ProcessGroup& meeting) -> absl::Status {
      std::string bytes(16, 'x');
      absl::Status exchanged;
      if (transport.rank() == 0) {
        exchanged = transport.Exchange({{{1, Bytes(bytes), sent}}}, {}, kWhat, kTimeout);
      } else {
        exchanged = transport.Exchange({}, {{{0, Bytes(bytes), 8}}}, kWhat, kTimeout);
      }
      FSDP_RETURN_IF_ERROR(meeting.AllGatherObject("").status());
      return exchanged;
    });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1 of 2: all_gather #7: rank 0 sent")));
  }
}

TEST_F(UcxTransportTest, AMissingRankIsNamedAtTheDeadline) {
  EXPECT_OK(OnRanks(3, [](Transport& transport, ProcessGroup& meeting) -> absl::Status {
    if (transport.rank() == 0) {
      std::string bytes(8, 'x');
      EXPECT_THAT(
          transport.Exchange({}, {{{2, Bytes(bytes), 8}}}, kWhat, absl::Milliseconds(100)),
          StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 of 3: all_gather #7 waited 100ms; missing ranks: 2"));
      transport.AwaitSends();
    }
    return meeting.AllGatherObject("").status();
  }));
}

TEST_F(UcxTransportTest, ANoticeEndsAWait) {
  EXPECT_OK(OnRanks(3, [](Transport& transport, ProcessGroup& meeting) -> absl::Status {
    if (transport.rank() == 1) {
      transport.Tell({.kind = Notice::Kind::kGaveUp, .sequence = 7, .reason = absl::DataLossError("bad bytes")});
    } else {
      std::string bytes(8, 'x');
      EXPECT_THAT(transport.Exchange({}, {{{2 - transport.rank(), Bytes(bytes), 8}}}, kWhat, kTimeout),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1 (here) gave up: bad bytes")));
      EXPECT_EQ(transport.first_rank_to_give_up(), 1);
    }
    return meeting.AllGatherObject("").status();
  }));
}

// The messages of a rank that left are still received; ranks that wait for more get the notice.
TEST_F(UcxTransportTest, ARankThatLeftIsNamed) {
  EXPECT_OK(OnRanks(2, [](Transport& transport, ProcessGroup&) -> absl::Status {
    FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 100000));
    if (transport.rank() == 1) {
      transport.Tell({.kind = Notice::Kind::kLeft});
      return absl::OkStatus();
    }
    std::string bytes(8, 'x');
    EXPECT_THAT(transport.Exchange({}, {{{1, Bytes(bytes), 8}}}, kWhat, kTimeout),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("all_gather #7: rank 1 (here) left the group")));
    return absl::OkStatus();
  }));
}

TEST_F(UcxTransportTest, APartIsATransportOfItsOwn) {
  EXPECT_OK(OnRanks(4, [](Transport& transport, ProcessGroup& meeting) -> absl::Status {
    const int first = transport.rank() % 2;
    FSDP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Transport> half,
        transport.Split({first + 2, first}, [&](std::string_view blob) { return meeting.AllGatherObject(blob); }));
    EXPECT_EQ(half->rank(), transport.rank() < 2 ? 1 : 0);
    EXPECT_EQ(half->size(), 2);
    FSDP_RETURN_IF_ERROR(ExchangeTexts(*half, 5000));
    return ExchangeTexts(transport, 5000);
  }));
}

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

TEST_F(UcxTransportTest, RandomBytesOnEveryPortDisturbNothing) {
  EXPECT_OK(OnRanks(3, [](Transport& transport, ProcessGroup& meeting) -> absl::Status {
    FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 5000));
    std::vector<FileDescriptor> strangers;
    if (transport.rank() == 0) {
      const std::vector<Listener> listeners = Listeners();
      EXPECT_FALSE(listeners.empty());
      std::mt19937 random(11);
      for (const auto& [address, port] : listeners) {
        for (const size_t nbytes : {0, 1, 8, 100, 5000}) {
          FSDP_ASSIGN_OR_RETURN(FileDescriptor stranger, ConnectTcp(address, port, SteadyNow() + absl::Seconds(10)));
          std::string bytes(nbytes, '\0');
          for (char& byte : bytes) byte = static_cast<char>(random());
          // The other end may close immediately, at the first bytes that it does not understand.
          SendAll(stranger.get(), bytes, SteadyNow() + absl::Seconds(10)).IgnoreError();
          strangers.push_back(std::move(stranger));
        }
      }
    }
    for (int i = 0; i < 5; ++i) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(transport, 100000));
    }
    return meeting.AllGatherObject("").status();
  }));
}

// A process with a worker's address and the layout of tags, but not the nonce, cannot pass for a rank.
TEST_F(UcxTransportTest, AStrangersMessagesMatchNothing) {
  std::string address;
  const auto listen = [&](ProcessGroup& meeting, std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> blobs, meeting.AllGatherObject(blob));
    if (meeting.rank() == 0 && blobs[0].size() > 40) {
      address = blobs[0].substr(blobs[0].find('\n', blobs[0].find('\n', 16) + 1) + 1);
    }
    return blobs;
  };
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                          CreateUcxTransport(meeting->rank(), 2, {.place = "here", .timeout = kTimeout},
                                             [&](std::string_view blob) { return listen(*meeting, blob); }));
    std::unique_ptr<UcxWorker> stranger;
    std::string lie(1024, 'x');
    std::vector<UcxMessage> messages(4);
    if (meeting->rank() == 0) {
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, UcxContext::Create(/*interface=*/""));
      FSDP_ASSIGN_OR_RETURN(stranger, UcxWorker::Create(std::move(context)));
      FSDP_RETURN_IF_ERROR(stranger->Connect({address}, [](int, std::string_view) {}));
      for (uint64_t kind = 0; kind < 4; ++kind) {
        stranger->Send(Bytes(lie), 1024, kind << 16 | 1, messages[kind]);
      }
      for (int i = 0; i < 1000; ++i) stranger->Progress();
    }
    FSDP_RETURN_IF_ERROR(meeting->AllGatherObject("").status());
    for (int i = 0; i < 10; ++i) {
      FSDP_RETURN_IF_ERROR(ExchangeTexts(*transport, 1024));
      if (stranger != nullptr) stranger->Progress();
    }
    return transport->CheckNobodyGaveUp(kWhat);
  }));
}

}  // namespace
}  // namespace fsdp
