// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/directory_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(DirectoryLockTest, TheSecondIsRefusedUntilTheFirstIsGone) {
  const std::string path = NewTestDirectory();
  {
    ASSERT_OK_AND_ASSIGN(DirectoryLock lock, DirectoryLock::Take(path));
    const DirectoryLock moved = std::move(lock);
    EXPECT_THAT(DirectoryLock::Take(path),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(path), HasSubstr(absl::StrCat("process ", getpid(), " (")))));
  }
  EXPECT_OK(DirectoryLock::Take(path));
  EXPECT_TRUE(fs::is_empty(path));
}

TEST(DirectoryLockTest, ADeadHolderDoesNotBlockAndALivingOneIsNamed) {
  const std::string path = NewTestDirectory();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = DirectoryLock::Take(path);
    if (!lock.ok() || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(DirectoryLock::Take(path),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat("process ", child, " ("))));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_OK(DirectoryLock::Take(path));
  close(ready[0]);
  close(ready[1]);
}

TEST(DirectoryLockTest, TheLockFollowsTheDirectoryThroughARename) {
  const std::string root = NewTestDirectory();
  fs::create_directory(root + "/a");
  ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(root + "/a"));
  fs::rename(root + "/a", root + "/b");
  EXPECT_THAT(DirectoryLock::Take(root + "/b"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/b")));
  EXPECT_THAT(DirectoryLock::Take(root + "/a"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/a")));
}

}  // namespace
}  // namespace fsdp
