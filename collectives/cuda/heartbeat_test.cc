// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/cuda/heartbeat.h"

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(HeartbeatTest, ComesBackAsItWas) {
  Heartbeat beat;
  beat.leaves = true;
  beat.issued = 7;
  beat.begun = 5;
  beat.stalled = {.op = CollectiveOp::kAllGather, .sequence = 4};
  beat.fault = absl::DataLossError("bits fell off");
  beat.calls = {{6, {.op = CollectiveOp::kBroadcast, .dtype = DType::kInt64, .root = 2, .count = 9}},
                {7, {.op = CollectiveOp::kAllReduce, .reduce_op = ReduceOp::kMax, .count = 1}}};
  ASSERT_OK_AND_ASSIGN(const Heartbeat back, Heartbeat::Decode(beat.Encode()));
  EXPECT_TRUE(back.leaves);
  EXPECT_EQ(back.issued, 7u);
  EXPECT_EQ(back.begun, 5u);
  EXPECT_EQ(back.stalled.ToString(), "all_gather #4");
  EXPECT_EQ(back.fault, beat.fault);
  ASSERT_EQ(back.calls.size(), 2u);
  EXPECT_EQ(back.calls[0].second.ToString(), "broadcast int64[9] from root 2");
  EXPECT_EQ(back.calls[1].first, 7u);
  EXPECT_TRUE(back.calls[1].second.AgreesWith(beat.calls[1].second));
}

TEST(HeartbeatTest, TornBytesAreRefused) {
  Heartbeat beat;
  beat.calls = {{1, {}}, {2, {}}};
  const std::string bytes = beat.Encode();
  EXPECT_THAT(Heartbeat::Decode(bytes.substr(0, 10)).status(),
              StatusIs(absl::StatusCode::kInternal, "a heartbeat of 10 bytes"));
  EXPECT_THAT(Heartbeat::Decode(bytes.substr(0, bytes.size() - 1)).status(),
              StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("announces 2 calls")));
}

TEST(HeartbeatTest, ManyHostsHaveRarerRounds) {
  EXPECT_EQ(HeartbeatInterval(1), absl::Milliseconds(20));
  EXPECT_EQ(HeartbeatInterval(4), absl::Milliseconds(20));
  EXPECT_EQ(HeartbeatInterval(5), absl::Milliseconds(25));
  EXPECT_EQ(HeartbeatInterval(64), absl::Milliseconds(320));
}

}  // namespace
}  // namespace fsdp
