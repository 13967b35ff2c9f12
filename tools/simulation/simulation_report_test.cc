// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/simulation_report.h"

#include <string>
#include <vector>

#include "fsdp/tools/page/page_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

SimulatedRun RunOf(int ranks, int64_t peak) {
  SimulatedRun run;
  run.job.ranks = ranks;
  run.job.hosts = (ranks + 7) / 8;
  run.job.device = DevicePreset("h100", ComputePrecision::kBFloat16).value();
  run.step.tokens_per_second = 1000.0 * ranks;
  run.step.parameters = 8'000'000'000;
  run.step.memory = {.fsdp = peak / 2, .optimizer = peak / 4, .activations = peak - peak / 2 - peak / 4};
  run.step.timeline.seconds = 2;
  run.step.timeline.exposed = 0.5;
  run.step.save_seconds = 0.0123;
  return run;
}

TEST(SimulationReportTest, OneHostIsNotSeveral) {
  EXPECT_EQ(RanksText(RunOf(1, 0).job), "1 rank on 1 host");
  EXPECT_EQ(RanksText(RunOf(16, 0).job), "16 ranks on 2 hosts");
  // Regression: a save of 12 ms took "0.0 s".
  EXPECT_THAT(SimulationText({RunOf(8, 1 << 30)}),
              AllOf(HasSubstr("8 ranks on 1 host, h100"), HasSubstr("saved in 12.3 ms")));
}

TEST(SimulationReportTest, WhatDoesNotFitIsFirst) {
  SimulatedRun large = RunOf(8, int64_t{100} << 30);
  large.fitting = {{"--ranks=16 --hosts=2", int64_t{60} << 30, 12'345}};
  const std::string text = SimulationText({large, RunOf(16, 1 << 30)});
  EXPECT_THAT(text, StartsWith("does not fit: 8 ranks on 1 host, each needs 100.0 GiB and the h100 has 74.5 GiB\n"
                               "  fits with --ranks=16 --hosts=2: 60.0 GiB, 12345 tokens a second\n"));
  EXPECT_THAT(text, AllOf(HasSubstr(" no "), HasSubstr(" yes ")));
  large.fitting.clear();
  EXPECT_THAT(SimulationText({large}), HasSubstr("nothing that was tried is enough"));
  const nlohmann::json json = nlohmann::json::parse(SimulationJson({RunOf(8, 1 << 30)}));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["ranks"], 8);
  SimulatedRun unknown = RunOf(8, 1 << 30);
  unknown.job.device.memory_bytes = 0;
  EXPECT_TRUE(nlohmann::json::parse(SimulationJson({unknown}))["fits"].is_null());
}

TEST(SimulationPageTest, ShowsMisfitsFirstAndEachNumberOfRanks) {
  SimulatedRun large = RunOf(8, int64_t{100} << 30);
  large.fitting = {{"--activation_checkpointing=full", int64_t{60} << 30, 12'345}};
  const std::string page = SimulationPage("a<b>", {large, RunOf(16, 1 << 30)});
  EXPECT_THAT(page, AllOf(HasSubstr("<h1><bdi>a&lt;b&gt;</bdi> on h100</h1>"), HasSubstr("<tr class=\"bad\">"),
                          HasSubstr("fits with <bdi>--activation_checkpointing=full</bdi>: 60 GiB"),
                          HasSubstr("16 ranks on 2 hosts")));
  EXPECT_LT(page.find("Does not fit"), page.find("Speed of a rank"));
  EXPECT_THAT(SimulationPage("a", {RunOf(8, 1 << 30)}),
              AllOf(Not(HasSubstr("Does not fit")), HasSubstr("tokens a second")));
  ExpectLoadsNothing(page);
  ExpectTagsClose(page);
}

}  // namespace
}  // namespace fsdp
