// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/steady_clock.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// This test links :fake_clock.
TEST(SteadyClockTest, PassesEvenlyWhileTheSystemsClockJumpsByHours) {
  absl::Duration farthest;
  absl::Time last = SteadyNow();
  const absl::Time end = last + absl::Milliseconds(100);
  const absl::Time date = absl::Now();
  while (last < end) {
    absl::SleepFor(absl::Milliseconds(1));
    const absl::Time now = SteadyNow();
    ASSERT_GT(now, last);
    ASSERT_LT(now - last, absl::Minutes(1));
    last = now;
    farthest = std::max(farthest, absl::AbsDuration(absl::Now() - date));
  }
  EXPECT_GT(farthest, absl::Minutes(90)) << "the system's clock has not jumped, so this test shows nothing";
}

}  // namespace
}  // namespace fsdp
