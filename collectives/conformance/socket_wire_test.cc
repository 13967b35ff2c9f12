// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/conformance/socket_wire.h"

#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/collective_timing.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// The values in docs/collectives.md.
TEST(LinkBytesTest, AreThoseOfTheRoute) {
  const HostLayout two_by_one = HostLayout::Of({"a", "b"});
  const HostLayout two_by_four = HostLayout::Of({"a", "a", "a", "a", "b", "b", "b", "b"});
  const auto bytes = [](CollectiveOp op, DType dtype, const HostLayout& layout) {
    return LinkBytes(op, dtype, 1000, layout);
  };
  EXPECT_EQ(bytes(CollectiveOp::kAllGather, DType::kFloat32, two_by_one), 500);
  EXPECT_EQ(bytes(CollectiveOp::kAllGather, DType::kFloat32, two_by_four), 500);
  EXPECT_EQ(bytes(CollectiveOp::kReduceScatter, DType::kFloat32, two_by_one), 500);
  EXPECT_EQ(bytes(CollectiveOp::kReduceScatter, DType::kFloat32, two_by_four), 875);
  EXPECT_EQ(bytes(CollectiveOp::kReduceScatter, DType::kBFloat16, two_by_four), 1500);
  EXPECT_EQ(bytes(CollectiveOp::kAllReduce, DType::kFloat32, two_by_one), 1000);
  EXPECT_EQ(bytes(CollectiveOp::kAllReduce, DType::kFloat32, two_by_four), 1375);
  EXPECT_EQ(bytes(CollectiveOp::kBroadcast, DType::kFloat32, two_by_four), 1000);
  EXPECT_EQ(bytes(CollectiveOp::kBarrier, DType::kFloat32, two_by_four), 0);
}

TEST(SocketWireTest, CarriesBytesBothWaysAndGoesOverTheMemoryAgain) {
  const HostLayout layout = HostLayout::Of({"a", "a", "b", "b"});
  EXPECT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SocketWire> wire, SocketWire::Create(*group, layout, "127.0.0.1"));
    const char mine = group->rank() == 0 ? 'a' : 'b';
    const char theirs = group->rank() == 0 ? 'b' : 'a';
    std::string source(3000, mine);
    std::string destination(3000, '-');
    FSDP_RETURN_IF_ERROR(wire->Exchange(absl::MakeSpan(source), absl::MakeSpan(destination), 2000));
    const bool is_end = group->rank() % 2 == 0;
    EXPECT_EQ(destination, is_end ? std::string(2000, theirs) + std::string(1000, '-') : std::string(3000, '-'));
    FSDP_RETURN_IF_ERROR(wire->Exchange(absl::MakeSpan(source), absl::MakeSpan(destination), 10'000'000));
    EXPECT_EQ(destination, std::string(3000, is_end ? theirs : '-'));
    FSDP_RETURN_IF_ERROR(wire->PingPong(absl::MakeSpan(source)));
    // The data that host 0 sent came back to it.
    EXPECT_EQ(source, std::string(3000, is_end ? 'a' : mine));
    return absl::OkStatus();
  }));
}

TEST(SocketWireTest, RanksOfOneHostHaveNone) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) {
    return SocketWire::Create(*group, HostLayout::Of({"a", "a"}), "127.0.0.1").status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 host with 2 ranks, expected several")));
}

TEST(CollectiveTimingTest, ComparesWithTheWire) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SocketWire> wire,
                          SocketWire::Create(*group, HostLayout::Of({"a", "b"}), "127.0.0.1"));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<CollectiveTimer> timer,
                          CollectiveTimer::Create(*group, DType::kFloat32, 1 << 20, {.rounds = 1, .wire = wire.get()}));
    for (const int64_t bytes : {4 << 10, 1 << 20}) {  // a ping-pong, an exchange
      FSDP_ASSIGN_OR_RETURN(const Timing timing, timer->Measure(CollectiveOp::kAllReduce, bytes));
      EXPECT_GT(timing.floor, 0);
      EXPECT_EQ(timing.share, timing.floor / timing.time);  // of the one round
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
