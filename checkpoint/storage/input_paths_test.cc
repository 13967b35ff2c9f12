// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/input_paths.h"

#include <filesystem>
#include <string>

#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

TEST(InputPathsTest, ADirectoryIsReadWithItsMembersAndTheFilesThatTheyAreLinksTo) {
  const std::string root = NewTestDirectory();
  fs::create_directories(root + "/model/sub");
  fs::create_directories(root + "/blobs/deep");
  WriteAll(root + "/model/member", "x");
  WriteAll(root + "/blobs/deep/blob", "x");
  WriteAll(root + "/beside", "x");
  fs::create_symlink("../blobs/deep/blob", root + "/model/linked");
  InputPaths inputs;
  inputs.Add(root + "/model");
  inputs.Add(root + "/none");  // adds nothing
  inputs.Add("");
  for (const char* path : {"/model", "/model/member", "/model/sub", "/model/linked", "/blobs/deep/blob"}) {
    EXPECT_TRUE(inputs.Find(root + path).has_value()) << path;
  }
  EXPECT_EQ(inputs.Find(root + "/model/../model/./member"), root + "/model/member");
  for (const char* path : {"", "/blobs", "/beside", "/none"})
    EXPECT_FALSE(inputs.Find(root + path).has_value()) << path;
  for (const char* path : {"", "/blobs", "/blobs/deep"})
    EXPECT_TRUE(inputs.FindInside(root + path).has_value()) << path;
  EXPECT_EQ(inputs.FindInside(root), root + "/model");
  EXPECT_FALSE(inputs.FindInside(root + "/beside").has_value());
}

}  // namespace
}  // namespace fsdp
