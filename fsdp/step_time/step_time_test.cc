// SPDX-License-Identifier: Apache-2.0
//
// Times are whole numbers of seconds, and the expected ones are counted by hand from the picture in schedule.h.
#include "fsdp/fsdp/step_time/step_time.h"

#include <algorithm>
#include <limits>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/step_time/step_memory.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;
using Kind = ScheduleEvent::Kind;

// A root without own layers, and blocks that all take the same time.
StepCosts CostsOf(int blocks, const UnitCost& block) {
  StepCosts costs;
  costs.units.assign(blocks + 1, block);
  costs.units[0] = {};
  return costs;
}

Schedule ScheduleOf(int blocks, const ShardingPlan& plan, int micro_steps = 1) {
  return StepSchedule(VisitsOf(blocks + 1), micro_steps, ScheduleOptionsOf(blocks + 1, plan));
}

constexpr UnitCost kBlock = {.forward = 4, .backward = 8, .all_gather = 2, .reduce_scatter = 3};
const ShardingPlan kFullShard = {.shard_ranks = 2};

double BeginOf(const StepTimeline& timeline, Kind kind, int unit, int which = 0) {
  for (const TimedEvent& timed : timeline.events) {
    if (timed.event == ScheduleEvent{kind, unit} && which-- == 0) return timed.begin;
  }
  ADD_FAILURE() << "no event of unit " << unit;
  return -1;
}

TEST(StepTimeTest, OnlyTheFirstAllGatherAndTheLastReductionAreExposedWhereComputeTakesLonger) {
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(4, kFullShard), CostsOf(4, kBlock)));
  EXPECT_THAT(timeline.compute, DoubleEq(4 * 4 + 4 * 8));
  EXPECT_THAT(timeline.exposed, DoubleEq(2 + 3));
  EXPECT_THAT(timeline.seconds, DoubleEq(timeline.compute + timeline.exposed));
}

TEST(StepTimeTest, AnAllGatherWaitsForTheSlotOfTheUnitBeforeLast) {
  StepCosts costs = CostsOf(4, kBlock);
  ASSERT_OK_AND_ASSIGN(const StepTimeline two, StepTime(ScheduleOf(4, kFullShard), costs));
  // Blocks 1 and 2 are gathered immediately; block 3 takes the slot that block 1 gives back at 2 + 4.
  EXPECT_EQ(BeginOf(two, Kind::kAllGather, 2), 2);
  EXPECT_EQ(BeginOf(two, Kind::kAllGather, 3), 6);
  costs.unsharded_slots = 4;
  ASSERT_OK_AND_ASSIGN(const StepTimeline four, StepTime(ScheduleOf(4, kFullShard), costs));
  EXPECT_EQ(BeginOf(four, Kind::kAllGather, 3), 4);
  costs.unsharded_slots = 1;
  ASSERT_OK_AND_ASSIGN(const StepTimeline one, StepTime(ScheduleOf(4, kFullShard), costs));
  EXPECT_EQ(BeginOf(one, Kind::kAllGather, 2), 6);
  EXPECT_GT(one.exposed, two.exposed);
}

TEST(StepTimeTest, WithoutPrefetchABackwardWaitsForItsAllGather) {
  ShardingPlan none = kFullShard;
  none.backward_prefetch = BackwardPrefetch::kNone;
  ASSERT_OK_AND_ASSIGN(const StepTimeline pre, StepTime(ScheduleOf(4, kFullShard), CostsOf(4, kBlock)));
  ASSERT_OK_AND_ASSIGN(const StepTimeline late, StepTime(ScheduleOf(4, none), CostsOf(4, kBlock)));
  EXPECT_GT(late.exposed, pre.exposed);
}

TEST(StepTimeTest, CollectivesOfOneGroupDoNotOverlap) {
  const UnitCost slow = {.forward = 1, .backward = 1, .all_gather = 5, .reduce_scatter = 7};
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(3, kFullShard), CostsOf(3, slow)));
  // Three all-gathers in forward. Without reshard of the last block its own is not repeated in backward: two there.
  const int gathers = static_cast<int>(std::count_if(timeline.events.begin(), timeline.events.end(),
                                                     [](const auto& e) { return e.event.kind == Kind::kAllGather; }));
  EXPECT_THAT(timeline.communication, DoubleEq(gathers * 5 + 3 * 7));
  std::vector<TimedEvent> collectives;
  for (const TimedEvent& timed : timeline.events) {
    if (timed.stream != StepStream::kCompute) collectives.push_back(timed);
  }
  for (size_t i = 1; i < collectives.size(); ++i) EXPECT_GE(collectives[i].begin, collectives[i - 1].end);
}

TEST(StepTimeTest, ABackwardWaitsForAGradientSlot) {
  const UnitCost block = {.forward = 1, .backward = 1, .reduce_scatter = 10};
  StepCosts costs = CostsOf(3, block);
  ShardingPlan keep = kFullShard;
  keep.strategy = ShardingStrategy::kShardGradOp;
  ASSERT_OK_AND_ASSIGN(const StepTimeline two, StepTime(ScheduleOf(3, keep), costs));
  // Backward of blocks 3 and 2 at 3 and 4, of block 1 when the reduction of block 3 has ended.
  EXPECT_EQ(BeginOf(two, Kind::kBackward, 2), 4);
  EXPECT_EQ(BeginOf(two, Kind::kBackward, 1), 4 + 10);
  costs.gradient_slots = 3;
  ASSERT_OK_AND_ASSIGN(const StepTimeline three, StepTime(ScheduleOf(3, keep), costs));
  EXPECT_EQ(BeginOf(three, Kind::kBackward, 1), 5);
}

TEST(StepTimeTest, AnAllReduceOfAHybridStrategyOverlapsTheNextReduceScatter) {
  ShardingPlan hybrid = kFullShard;
  hybrid.strategy = ShardingStrategy::kHybridShard;
  UnitCost block = kBlock;
  block.all_reduce = 6;
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(4, hybrid), CostsOf(4, block)));
  EXPECT_THAT(timeline.exposed, DoubleEq(2 + 3 + 6));
  EXPECT_EQ(BeginOf(timeline, Kind::kAllReduce, 4), BeginOf(timeline, Kind::kReduceScatter, 4) + 3);
}

TEST(StepTimeTest, UnitsThatAreNotShardedAllReduceBehindTheirBackward) {
  const ShardingPlan plan = {.strategy = ShardingStrategy::kNoShard, .shard_ranks = 1};
  const UnitCost block = {.forward = 4, .backward = 8, .all_reduce = 5};
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(3, plan), CostsOf(3, block)));
  EXPECT_THAT(timeline.seconds, DoubleEq(3 * 4 + 3 * 8 + 5));
}

TEST(StepTimeTest, TheRootComputesBeforeAndAfterItsBlocks) {
  StepCosts costs = CostsOf(1, kBlock);
  costs.units[0] = {.forward = 1, .forward_after_inner = 2, .backward = 3, .backward_after_inner = 5};
  costs.optimizer = 7;
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(1, kFullShard), costs));
  EXPECT_THAT(timeline.compute, DoubleEq(1 + 4 + 2 + 3 + 8 + 5 + 7));
  // The block's gather runs during the root's forward: one second remains; of its reduction, which ends behind 5,
  // nothing.
  EXPECT_THAT(timeline.exposed, DoubleEq(1));
  EXPECT_EQ(BeginOf(timeline, Kind::kForward, 0, 1), 2 + 4);
}

TEST(StepTimeTest, MicroStepsWithoutSynchronisationReduceNothing) {
  ASSERT_OK_AND_ASSIGN(const StepTimeline one, StepTime(ScheduleOf(3, kFullShard), CostsOf(3, kBlock)));
  ASSERT_OK_AND_ASSIGN(const StepTimeline two, StepTime(ScheduleOf(3, kFullShard, 2), CostsOf(3, kBlock)));
  const auto reductions = [](const StepTimeline& timeline) {
    return std::count_if(timeline.events.begin(), timeline.events.end(),
                         [](const TimedEvent& timed) { return timed.event.kind == Kind::kReduceScatter; });
  };
  EXPECT_EQ(reductions(one), 3);
  EXPECT_EQ(reductions(two), 3);
  EXPECT_THAT(two.compute, DoubleEq(2 * one.compute));
}

TEST(StepTimeTest, ForwardPrefetchPaysWhereTheHostIsSlowToIssue) {
  ShardingPlan ahead = kFullShard;
  ahead.forward_prefetch = true;
  StepCosts costs = CostsOf(4, kBlock);
  ASSERT_OK_AND_ASSIGN(const StepTimeline of_fast, StepTime(ScheduleOf(4, kFullShard), costs));
  ASSERT_OK_AND_ASSIGN(const StepTimeline ahead_of_fast, StepTime(ScheduleOf(4, ahead), costs));
  EXPECT_EQ(ahead_of_fast.seconds, of_fast.seconds);
  costs.issue = 3;
  ASSERT_OK_AND_ASSIGN(const StepTimeline of_slow, StepTime(ScheduleOf(4, kFullShard), costs));
  ASSERT_OK_AND_ASSIGN(const StepTimeline ahead_of_slow, StepTime(ScheduleOf(4, ahead), costs));
  EXPECT_GT(of_slow.seconds, of_fast.seconds);
  EXPECT_LT(ahead_of_slow.seconds, of_slow.seconds);
}

TEST(StepTimeTest, CostsThatDoNotFitTheScheduleAreNamed) {
  const Schedule schedule = ScheduleOf(2, kFullShard);
  EXPECT_THAT(StepTime(schedule, CostsOf(1, kBlock)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has unit 2, wanted one of 2 with costs")));
  StepCosts costs = CostsOf(2, kBlock);
  costs.units[1].backward = -1;
  EXPECT_THAT(StepTime(schedule, costs),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("backward of unit 1 takes -1 s")));
  costs = CostsOf(2, kBlock);
  costs.optimizer = std::numeric_limits<double>::infinity();
  EXPECT_THAT(StepTime(schedule, costs),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer takes inf s")));
  costs = CostsOf(2, kBlock);
  costs.unsharded_slots = 0;
  EXPECT_THAT(StepTime(schedule, costs), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 unsharded")));
}

TEST(StepTimeTest, TheTimelineIsATraceWithTheRowsOfTrainGpt) {
  ASSERT_OK_AND_ASSIGN(const StepTimeline timeline, StepTime(ScheduleOf(1, kFullShard), CostsOf(1, kBlock)));
  const nlohmann::json trace = nlohmann::json::parse(TimelineJson(timeline, {"root", "h.0"}));
  const nlohmann::json& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 4 + timeline.events.size());
  EXPECT_EQ(events[1]["args"]["name"], "unshard");
  EXPECT_EQ(events[4]["name"], "all_gather h.0");
  EXPECT_EQ(events[4]["dur"], 2e6);
}

}  // namespace
}  // namespace fsdp
