// SPDX-License-Identifier: Apache-2.0
//
// The transport over UCX, between threads of this process, which meet through a local group.
#include "fsdp/collectives/net/ucx_transport.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/net/ucx_transport_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace fsdp
