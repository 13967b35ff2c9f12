// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_age.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "absl/time/time.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

void SetDate(const std::string& path, std::chrono::seconds from_now) {
  fs::last_write_time(path, fs::file_time_type::clock::now() + from_now);
}

TEST(FileAgeTest, ADateAfterThisHostsClockIsSaidAndNoAge) {
  const std::string path = NewTestDirectory() + "/file";
  WriteAll(path, "1");
  SetDate(path, std::chrono::seconds(-3900));
  EXPECT_EQ(absl::Trunc(AgeOf(path), absl::Minutes(1)), absl::Minutes(65));
  SetDate(path, std::chrono::hours(1));
  EXPECT_LT(AgeOf(path), absl::Minutes(-59));
  EXPECT_EQ(AgeText(absl::Minutes(65)), "1h ago");
  EXPECT_EQ(AgeText(absl::Hours(50)), "2d ago");
  EXPECT_EQ(AgeText(absl::Milliseconds(-3)), "0s ago");
  EXPECT_EQ(AgeText(absl::Minutes(-58)), "at a time that is 58m after this host's clock");
  EXPECT_EQ(AgeOf(path + "-that-does-not-exist"), absl::ZeroDuration());
}

TEST(FileAgeTest, ADateIsInUtc) {
  const std::string path = NewTestDirectory() + "/file";
  WriteAll(path, "1");
  const timespec times[2] = {{86400, 0}, {951868800, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(DateText(path), "2000-03-01 00:00 UTC");
  EXPECT_EQ(DateText(path + "-that-does-not-exist"), "");
}

}  // namespace
}  // namespace fsdp
