// SPDX-License-Identifier: Apache-2.0
//
// The simulation compared with published measurements. A row outside the tolerance is named here and in
// docs/simulate.md, with the reason, and no row has a number of its own.
#include "fsdp/tools/simulation/published_runs.h"

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text() {
  std::ifstream file("tools/simulation/published_runs.json");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const PublishedRun& Named(const PublishedRuns& runs, const std::string& name) {
  for (const PublishedRun& run : runs.runs) {
    if (run.name == name) return run;
  }
  ADD_FAILURE() << "no row " << name;
  return runs.runs.front();
}

TEST(PublishedRunsTest, AllRowsButTheNamedOneAreMetWithinTenPercent) {
  ASSERT_OK_AND_ASSIGN(const PublishedRuns runs, ParsePublishedRuns(Text()));
  EXPECT_GE(runs.runs.size(), 26u);
  std::vector<std::string> missed;
  for (const PublishedRun& run : runs.runs) {
    ASSERT_OK_AND_ASSIGN(const double simulated, SimulatedMetric(run));
    if (std::abs(simulated / run.published - 1) > 0.1) missed.push_back(run.name);
  }
  EXPECT_THAT(missed, ElementsAre("Llama 2 13B, HSDP, 128 A100"));
}

TEST(PublishedRunsTest, ChangesWithTheNumberOfRanksAreMetWithinThreePercent) {
  ASSERT_OK_AND_ASSIGN(const PublishedRuns runs, ParsePublishedRuns(Text()));
  EXPECT_EQ(runs.deltas.size(), 4u);
  for (const PublishedDelta& delta : runs.deltas) {
    const PublishedRun& from = Named(runs, delta.from);
    const PublishedRun& to = Named(runs, delta.to);
    ASSERT_OK_AND_ASSIGN(const double before, SimulatedMetric(from));
    ASSERT_OK_AND_ASSIGN(const double after, SimulatedMetric(to));
    EXPECT_NEAR(after / before, to.published / from.published, 0.03) << delta.from;
  }
}

TEST(PublishedRunsTest, EveryRowNamesItsSourceAndConditions) {
  ASSERT_OK_AND_ASSIGN(const PublishedRuns runs, ParsePublishedRuns(Text()));
  std::set<std::string> names;
  for (const PublishedRun& run : runs.runs) {
    EXPECT_TRUE(absl::StartsWith(run.source, "https://")) << run.name;
    EXPECT_FALSE(run.conditions.empty()) << run.name;
    EXPECT_TRUE(names.insert(run.name).second) << run.name << " is there twice";
  }
  for (const UnmodelledRun& run : runs.not_modelled) {
    EXPECT_TRUE(absl::StartsWith(run.source, "https://")) << run.name;
    EXPECT_FALSE(run.why.empty()) << run.name;
  }
}

TEST(PublishedRunsTest, TheTableHasEveryRow) {
  ASSERT_OK_AND_ASSIGN(const PublishedRuns runs, ParsePublishedRuns(Text()));
  ASSERT_OK_AND_ASSIGN(const std::string table, PublishedTable(runs));
  for (const PublishedRun& run : runs.runs) EXPECT_THAT(table, HasSubstr("| " + run.name + " |"));
  for (const UnmodelledRun& run : runs.not_modelled) EXPECT_THAT(table, HasSubstr("| " + run.name + " |"));
}

TEST(PublishedRunsTest, AFileThatIsWrongIsRefusedWithTheRow) {
  const auto expect = [](const std::string& text, const char* message) {
    EXPECT_THAT(ParsePublishedRuns(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect("", "wanted a JSON object with classes");
  expect("[1]", "wanted a JSON object with classes");
  expect(absl::StrReplaceAll(Text(), {{"\"seq_len\": 32768", "\"seq_len\": \"long\""}}),
         "row \"8B, 32768 tokens, compiled, float8, 8 H100\": seq_len is missing or of another type");
  expect(absl::StrReplaceAll(Text(), {{"\"class\": \"IBM H100\"", "\"class\": \"IBM B200\""}}),
         "no class \"IBM B200\"");
  expect(absl::StrReplaceAll(Text(), {{"\"metric\": \"tflops\"", "\"metric\": \"joy\""}}), "metric \"joy\"");
}

}  // namespace
}  // namespace fsdp
