// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/trace_file.h"

#include <fstream>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(TraceFileTest, HasAProcessPerRankAndARowPerStream) {
  const std::string path = testing::TempDir() + "/trace.json";
  ASSERT_OK_AND_ASSIGN(const auto file, TraceFile::Open(path));
  ASSERT_OK(file->Write({{{"compute", "forward \"a\"", 5'000, 8'500}, {"unshard", "all_gather a", 4'000, 5'000}},
                         {{"compute", "forward a", 6'000, 7'000}}}));
  std::ifstream stream(path);
  const nlohmann::json events = nlohmann::json::parse(stream)["traceEvents"];
  std::vector<std::string> names;
  for (const auto& event : events) {
    if (event["ph"] == "M") names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names, testing::ElementsAre("rank 0", "compute", "unshard", "rank 1", "compute"));
  const nlohmann::json& first = events[2];
  EXPECT_EQ(first["name"], "forward \"a\"");
  EXPECT_EQ(first["ts"], 1.0);  // microseconds after the first span of all
  EXPECT_EQ(first["dur"], 3.5);
  EXPECT_EQ(events[4]["cat"], "collective");
}

TEST(TraceFileTest, ManySpansAreGatheredInPieces) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::vector<TraceSpan> mine;  // rank 0 has no spans, rank 2 more than one round
    for (int i = 0; i < group->rank() * 8000; ++i) {
      mine.push_back({"compute", "backward transformer.h." + std::to_string(i), i, i + group->rank()});
    }
    absl::StatusOr<std::vector<std::vector<TraceSpan>>> ranks = GatherSpans(*group, mine);
    if (!ranks.ok()) return ranks.status();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ((*ranks)[rank].size(), static_cast<size_t>(rank * 8000));
      if (rank > 0) {
        EXPECT_EQ((*ranks)[rank].back().end_ns, rank * 8000 - 1 + rank);
      }
    }
    return absl::OkStatus();
  }));
}

TEST(TraceFileTest, AFileThatCannotBeMadeIsNamedAtOnce) {
  EXPECT_THAT(TraceFile::Open("/no/such/directory/t.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--trace=/no/such/directory/t.json")));
}

}  // namespace
}  // namespace fsdp
