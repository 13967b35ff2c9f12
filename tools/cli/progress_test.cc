// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/progress.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Of work that was measured from its beginning.
std::string Line(const std::string& title, int64_t done, int64_t total, absl::Duration elapsed, int bar_columns) {
  return ProgressLine(title, {done, total, done, elapsed}, bar_columns);
}

TEST(ProgressTest, BytesHaveThreeDigitsAtMost) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(7), "7 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.0 kB");
  EXPECT_EQ(FormatBytes(9949), "9.9 kB");
  EXPECT_EQ(FormatBytes(9951), "10 kB");
  EXPECT_EQ(FormatBytes(412e6), "412 MB");
  EXPECT_EQ(FormatBytes(999.6e6), "1.0 GB");
  EXPECT_EQ(FormatBytes(3.26e9), "3.3 GB");
}

TEST(ProgressTest, ALineShowsBytesRateAndTimeLeft) {
  EXPECT_EQ(Line("convert", 1'000'000'000, 4'000'000'000, absl::Seconds(2), 0),
            "convert  25%  1.0 GB of 4.0 GB  500 MB/s  6s left");
  EXPECT_EQ(Line("convert", 1'000'000'000, 4'000'000'000, absl::Seconds(2), 8),
            "convert [==      ]  25%  1.0 GB of 4.0 GB  500 MB/s  6s left");
  EXPECT_EQ(Line("verify", 10, 10, absl::Seconds(1), 4), "verify [====] 100%  10 B of 10 B  10 B/s  0 left");
  EXPECT_EQ(Line("verify", 0, 0, absl::Seconds(1), 0), "verify 100%  0 B of 0 B  0 B/s  0 left");
}

// Regression: 10 s of opening a file of many tensors made a rate of 100 MB/s of 1.1 GB in 1 s, and 30 s of 3 s.
TEST(ProgressTest, TheTimeLeftFollowsFromTheBytesThatWereMeasured) {
  EXPECT_EQ(ProgressLine("convert", {1'100'000'000, 4'100'000'000, 1'000'000'000, absl::Seconds(1)}, 0),
            "convert  26%  1.1 GB of 4.1 GB  1.0 GB/s  3s left");
}

TEST(ProgressTest, NoTimeLeftIsSaidInTheFirstSecond) {
  EXPECT_EQ(Line("convert", 1'000'000, 4'000'000, absl::Milliseconds(100), 0),
            "convert  25%  1.0 MB of 4.0 MB  10 MB/s");
  EXPECT_EQ(Line("convert", 4'000'000, 4'000'000, absl::Milliseconds(100), 0),
            "convert 100%  4.0 MB of 4.0 MB  40 MB/s  0 left");
}

TEST(ProgressTest, ALineNeverClaimsMoreThanIsKnown) {
  // No rate yet, so no time.
  EXPECT_EQ(Line("verify", 0, 10, absl::ZeroDuration(), 0), "verify   0%  0 B of 10 B  0 B/s");
  EXPECT_EQ(Line("verify", 999, 1000, absl::Seconds(1), 0), "verify  99%  999 B of 1.0 kB  999 B/s  0 left");
  // More than was expected, or a total that overflowed.
  EXPECT_EQ(Line("pull", 10, 4, absl::Seconds(1), 0), "pull 100%  10 B of 10 B  10 B/s  0 left");
  EXPECT_EQ(Line("pull", 10, -4, absl::Seconds(1), 4), "pull [====] 100%  10 B of 10 B  10 B/s  0 left");
  EXPECT_EQ(Line("pull", 1, int64_t{1} << 62, absl::Hours(1), 0), "pull   0%  1 B of 4612 PB  0 B/s");
}

// Regression: at 50 columns each update was a new line.
TEST(ProgressTest, ALineIsShorterThanTheTerminalIsWide) {
  const MeasuredWork work = {1'000'000'000, 4'000'000'000, 1'000'000'000, absl::Seconds(2)};
  const std::string bare = ProgressLine("convert", work, 0);
  const std::string whole = ProgressLine("convert", work, 24);
  EXPECT_EQ(TerminalLine("convert", work, 0), whole);
  EXPECT_EQ(TerminalLine("convert", work, static_cast<int>(whole.size()) + 1), whole);
  EXPECT_EQ(TerminalLine("convert", work, static_cast<int>(whole.size())), bare);
  EXPECT_EQ(TerminalLine("convert", work, 20), bare.substr(0, 19));
}

TEST(ProgressTest, QuickWorkSaysNothingInALog) {
  testing::internal::CaptureStderr();
  {
    Progress progress("convert");
    for (int i = 0; i <= 1000; ++i) progress.callback()(i, 1000);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace fsdp
