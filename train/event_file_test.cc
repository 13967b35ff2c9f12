// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/event_file.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/train/event_reader_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string PathOf(const std::string& name) { return testing::TempDir() + "/events/" + name; }

TEST(EventFileTest, ScalarsAndTextReadBackWithTheirStepsAsSoonAsTheyAreWritten) {
  ASSERT_OK_AND_ASSIGN(const auto file, EventFile::Create(PathOf("deep/er"), 7));
  ASSERT_OK(file->WriteScalars(7, {{"train/loss", 2.5f}, {"train/lr", NAN}}));
  ASSERT_OK(file->WriteText(int64_t{1} << 40, "checkpoint", std::string(300, 'x')));
  ASSERT_OK_AND_ASSIGN(const std::vector<ReadEvent> events, ReadEvents(ReadFile(file->path())));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].is_start);
  EXPECT_EQ(events[1].step, 7);
  EXPECT_EQ(events[2].step, 7);
  EXPECT_EQ(events[2].scalars.at("train/loss"), 2.5f);
  EXPECT_TRUE(std::isnan(events[2].scalars.at("train/lr")));
  EXPECT_GT(events[2].wall_time, 1.5e9);
  EXPECT_EQ(events[3].step, int64_t{1} << 40);
  EXPECT_EQ(events[3].texts.at("checkpoint"), std::string(300, 'x'));
}

TEST(EventFileTest, AnotherRunInTheDirectoryLeavesTheFilesThatAreThere) {
  ASSERT_OK_AND_ASSIGN(const auto first, EventFile::Create(PathOf("two"), 0));
  const std::string before = ReadFile(first->path());
  ASSERT_OK_AND_ASSIGN(const auto second, EventFile::Create(PathOf("two"), 5));
  EXPECT_EQ(ReadFile(first->path()), before);
  const std::vector<std::string> files = EventFilesOf(PathOf("two"));
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1], second->path()) << "TensorBoard reads files in the order of their names";
}

TEST(EventFileTest, ADamagedOrTornFileIsSeen) {
  ASSERT_OK_AND_ASSIGN(const auto file, EventFile::Create(PathOf("damaged"), 0));
  const std::string bytes = ReadFile(file->path());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 1;
    EXPECT_THAT(ReadEvents(damaged), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("byte "))) << i;
  }
  EXPECT_THAT(ReadEvents(bytes.substr(0, bytes.size() - 1)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a torn record")));
}

TEST(EventFileTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(PathOf("../plain_file")) << "x";
  EXPECT_THAT(EventFile::Create(PathOf("../plain_file"), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("plain_file")));
  EXPECT_THAT(EventFile::Create("/proc/self/events", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/proc/self/events: cannot be made")));
}

// Acts as a full disk: the file may not grow.
TEST(EventFileTest, AWriteThatFailsIsAnErrorWithThePath) {
  ASSERT_OK_AND_ASSIGN(const auto file, EventFile::Create(PathOf("full"), 0));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit full = {std::filesystem::file_size(file->path()), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status written = file->WriteScalars(0, {{"train/loss", 1}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kInvalidArgument,
                                AllOf(HasSubstr(file->path()), HasSubstr("cannot write: File too large"))));
}

}  // namespace
}  // namespace fsdp
