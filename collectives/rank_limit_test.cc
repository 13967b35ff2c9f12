// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/rank_limit.h"

#include <string>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(RankLimitTest, TheLeastOfTheLimitsCountsAndIsNamed) {
  constexpr int64_t kMiB = 1 << 20;
  const struct {
    HostLimits host;
    int most;
    std::string why;
  } rows[] = {
      {{.cpus = 1}, 64, "64, or 4 for each of the 1 CPUs if that is more"},
      {{.cpus = 16}, 64, "16 CPUs"},
      {{.cpus = 17}, 68, "17 CPUs"},
      {{.cpus = 256}, 1024, "256 CPUs"},
      {{.cpus = 2, .tasks = 100}, 6, "100 processes and threads may be added"},
      {{.cpus = 2, .available_bytes = 70 * kMiB}, 4, "73400320 bytes of memory are available"},
      {{.cpus = 2, .tasks = 160, .available_bytes = 70 * kMiB}, 4, "memory"},
  };
  for (const auto& row : rows) {
    EXPECT_OK(CheckRankCount(row.most, row.host)) << row.why;
    EXPECT_OK(CheckRankCount(1, row.host)) << row.why;
    EXPECT_THAT(CheckRankCount(row.most + 1, row.host),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.why)));
    EXPECT_THAT(CheckRankCount(100000, row.host), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(CheckRankCount(0, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc is 0")));
}

TEST(RankLimitTest, ThisHostHoldsTwoRanksAndNotAHundredThousand) {
  const HostLimits host = HostLimits::OfThisHost();
  EXPECT_GE(host.cpus, 1);
  EXPECT_OK(CheckRankCount(2, host));
  EXPECT_THAT(CheckRankCount(100000, host), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace fsdp
