// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/output_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/page-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

TEST(OutputFileTest, ATextReplacesAFileOfItsName) {
  const std::string path = NewDirectory() + "/page.html";
  ASSERT_OK(WriteOutputFile("first", path));
  ASSERT_OK(WriteOutputFile("second", path));
  EXPECT_EQ(ReadFile(path), "second");
}

TEST(OutputFileTest, ADirectoryOfItsNameStaysWithAllThatIsInIt) {
  const std::string directory = NewDirectory();
  std::ofstream(directory + "/precious") << "kept";
  fs::create_directory_symlink(directory, directory + "-link");
  for (const std::string& path : {directory, directory + "-link"}) {
    EXPECT_THAT(WriteOutputFile("text", path),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path + ": is a directory, expected a file")));
  }
  EXPECT_EQ(ReadFile(directory + "/precious"), "kept");
}

TEST(OutputFileTest, APipeOfItsNameIsNotReplaced) {
  const std::string path = NewDirectory() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(WriteOutputFile("text", path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a file")));
  EXPECT_TRUE(fs::is_fifo(path));
}

}  // namespace
}  // namespace fsdp
