// SPDX-License-Identifier: Apache-2.0
//
// The schedule of every combination of options, as a readable table, against testdata/schedules/. A line is one
// computation: the work issued before it, the computation, the work issued after it. To write the files again, and
// review the difference:
//
//   bazel run //tests:schedule_text_test -- --update
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

bool g_update = false;

// root > a, b
const std::vector<UnitVisit>& Visits() {
  static const auto& visits =
      *new std::vector<UnitVisit>{{0, true}, {1, true}, {1, false}, {2, true}, {2, false}, {0, false}};
  return visits;
}

std::string Name(const ScheduleEvent& event) {
  const std::vector<std::string> names{"root", "a", "b"};
  std::string line = RenderSchedule({event}, names);
  line.pop_back();  // the newline
  return line;
}

bool IsCompute(const ScheduleEvent& event) { return event.kind == Kind::kForward || event.kind == Kind::kBackward; }

bool EndsAUnit(const ScheduleEvent& event) {
  return event.kind == Kind::kReshard || event.kind == Kind::kReshardToGroup || event.kind == Kind::kReduceScatter ||
         event.kind == Kind::kAllReduce || event.kind == Kind::kStep;
}

// Between two computations: the actions up to the last end of a unit belong to the first, the rest to the second.
std::string Table(const Schedule& schedule) {
  std::string text;
  size_t at = 0;
  while (at < schedule.size()) {
    std::vector<std::string> before, after;
    std::string compute;
    while (at < schedule.size() && !IsCompute(schedule[at]) && !EndsAUnit(schedule[at])) {
      before.push_back(Name(schedule[at++]));
    }
    if (at < schedule.size() && IsCompute(schedule[at])) compute = Name(schedule[at++]);
    size_t next = at, end = at;
    for (; next < schedule.size() && !IsCompute(schedule[next]); ++next) {
      if (EndsAUnit(schedule[next])) end = next + 1;
    }
    while (at < end) after.push_back(Name(schedule[at++]));
    std::string line =
        absl::StrFormat("  %-38s%-16s%s", absl::StrJoin(before, ", "), compute, absl::StrJoin(after, ", "));
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

struct Api {
  const char* name;  // of the file
  ShardingStrategy strategy;
  bool reshard_root = false;      // FSDP2's reshard_after_forward=True
  bool reshard_to_group = false;  // FSDP2's reshard_after_forward=k
};

ScheduleOptions OptionsOf(const Api& api, BackwardPrefetch prefetch, bool forward_prefetch, bool recompute) {
  ScheduleOptions options;
  options.backward_prefetch = prefetch;
  options.forward_prefetch = forward_prefetch;
  for (int unit = 0; unit < 3; ++unit) {
    UnitTraits traits = UnitTraits::Of(api.strategy, unit == 0);
    if (api.reshard_root) traits.reshard_after_forward = true;
    traits.reshard_to_group = api.reshard_to_group;
    traits.recompute = recompute && unit != 0;
    options.units.push_back(traits);
  }
  return options;
}

std::string AllOf(const Api& api) {
  std::string text;
  for (const int micro_steps : {1, 2}) {
    for (const auto prefetch :
         {BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost, BackwardPrefetch::kNone}) {
      for (const bool forward_prefetch : {false, true}) {
        for (const bool recompute : {false, true}) {
          absl::StrAppend(
              &text, micro_steps == 2 ? "no_sync, then with synchronisation; " : "",
              "backward_prefetch=", std::string(BackwardPrefetchName(prefetch)),
              forward_prefetch ? ", forward_prefetch" : "", recompute ? ", activation_checkpointing" : "", "\n",
              Table(StepSchedule(Visits(), micro_steps, OptionsOf(api, prefetch, forward_prefetch, recompute))), "\n");
        }
      }
    }
  }
  return text;
}

class ScheduleTextTest : public testing::TestWithParam<Api> {};

TEST_P(ScheduleTextTest, ReadsAsTheFile) {
  const std::string path = absl::StrCat("tests/testdata/schedules/", GetParam().name, ".txt");
  const std::string actual = AllOf(GetParam());
  if (g_update) {
    const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    ASSERT_NE(workspace, nullptr) << "--update works under bazel run";
    std::ofstream(absl::StrCat(workspace, "/", path)) << actual;
    return;
  }
  std::ifstream file(path);
  std::ostringstream expected;
  expected << file.rdbuf();
  ASSERT_TRUE(file) << path << " cannot be read";
  EXPECT_EQ(actual, expected.str()) << path << "; if the new order is wanted: bazel run //tests:schedule_text_test -- "
                                    << "--update";
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, ScheduleTextTest,
    testing::Values(Api{"full_shard", ShardingStrategy::kFullShard},
                    Api{"shard_grad_op", ShardingStrategy::kShardGradOp}, Api{"no_shard", ShardingStrategy::kNoShard},
                    Api{"hybrid_shard", ShardingStrategy::kHybridShard},
                    Api{"hybrid_shard_zero2", ShardingStrategy::kHybridShardZero2},
                    Api{"fsdp2_reshard_after_forward", ShardingStrategy::kFullShard, /*reshard_root=*/true},
                    Api{"fsdp2_reshard_to_group", ShardingStrategy::kFullShard, /*reshard_root=*/true,
                        /*reshard_to_group=*/true}),
    [](const auto& api) { return std::string(api.param.name); });

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) fsdp::g_update |= std::strcmp(argv[i], "--update") == 0;
  return RUN_ALL_TESTS();
}
