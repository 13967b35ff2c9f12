// SPDX-License-Identifier: Apache-2.0
//
// The Chrome trace of a run: valid JSON in which the spans of each stream nest, every unit occurs, and all-gathers run
// while other units compute.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

struct Span {
  std::string name;
  double begin = 0, end = 0;  // microseconds

  bool Overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

// Parameterised by --api.
class TraceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string path = NewDirectory() + "/trace.json";
    ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                         Train(SmallRun() + Flags{"--steps=3", "--api=" + GetParam(), "--trace=" + path}));
    ASSERT_EQ(run.exit_status, 0) << run.output;
    std::ifstream stream(path);
    const nlohmann::json trace = nlohmann::json::parse(stream);
    for (const nlohmann::json& event : trace["traceEvents"]) {
      const std::pair<int, int> row = {event["pid"], event["tid"]};
      if (event["name"] == "thread_name") row_names_[row] = event["args"]["name"];
      if (event["ph"] != "X") continue;
      const double begin = event["ts"], duration = event["dur"];
      rows_[row].push_back({event["name"], begin, begin + duration});
    }
  }

  std::map<std::pair<int, int>, std::vector<Span>> rows_;  // by rank and stream
  std::map<std::pair<int, int>, std::string> row_names_;
};

TEST_P(TraceTest, EveryUnitOfEveryRankIsThere) {
  for (const int rank : {0, 1}) {
    std::set<std::string> names, streams;
    for (const auto& [row, spans] : rows_) {
      if (row.first != rank) continue;
      streams.insert(row_names_[row]);
      for (const Span& span : spans) names.insert(span.name);
    }
    for (const std::string stream : {"compute", "unshard", "post_backward"})
      EXPECT_TRUE(streams.count(stream)) << stream;
    for (const std::string unit : {"root", "transformer.h.0", "transformer.h.1"}) {
      for (const std::string what : {"all_gather ", "forward ", "backward ", "reduce_scatter "}) {
        EXPECT_TRUE(names.count(what + unit)) << what << unit;
      }
    }
    for (const std::string what : {"loss", "clip_grad_norm", "optimizer"}) EXPECT_TRUE(names.count(what)) << what;
  }
}

TEST_P(TraceTest, SpansOfAStreamNest) {
  for (const auto& [row, spans] : rows_) {
    for (const Span& a : spans) {
      for (const Span& b : spans) {
        if (!a.Overlaps(b)) continue;
        const bool nested = (a.begin <= b.begin && b.end <= a.end) || (b.begin <= a.begin && a.end <= b.end);
        EXPECT_TRUE(nested) << a.name << " and " << b.name;
      }
    }
  }
}

TEST_P(TraceTest, AllGathersRunWhileOtherUnitsCompute) {
  int overlaps = 0;
  for (const auto& [row, spans] : rows_) {
    for (const auto& [other_row, others] : rows_) {
      if (row_names_[row] != "unshard" || row_names_[other_row] != "compute" || row.first != other_row.first) continue;
      for (const Span& gather : spans) {
        overlaps += std::count_if(others.begin(), others.end(), [&](const Span& compute) {
          const bool block = absl::StrContains(compute.name, " transformer.h.");
          return block && gather.Overlaps(compute);
        });
      }
    }
  }
  EXPECT_GT(overlaps, 0);
}

INSTANTIATE_TEST_SUITE_P(Apis, TraceTest, testing::Values("fsdp1", "fsdp2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp
