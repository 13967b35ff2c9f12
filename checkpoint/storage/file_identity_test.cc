// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_identity.h"

#include <filesystem>
#include <string>

#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class FileIdentityTest : public testing::Test {
 protected:
  FileIdentityTest() {
    fs::create_directories(root_ + "/a/b");
    WriteAll(root_ + "/a/file", "12345");
    fs::create_directory_symlink("a/b", root_ + "/link");
  }

  const std::string root_ = fs::canonical(NewTestDirectory());
};

TEST_F(FileIdentityTest, EverySpellingAndLinkLeadsToTheSameFile) {
  fs::create_hard_link(root_ + "/a/file", root_ + "/hard");
  fs::create_symlink("hard", root_ + "/symbolic");
  const auto file = IdentityOf(root_ + "/a/file");
  ASSERT_TRUE(file.has_value());
  for (const char* name : {"/a/../a/./file", "/link/../file", "/hard", "/symbolic", "//a//file"}) {
    EXPECT_EQ(IdentityOf(root_ + name), file) << name;
  }
  EXPECT_NE(IdentityOf(root_ + "/a"), file);
  EXPECT_EQ(IdentityOf(root_ + "/none"), std::nullopt);
}

TEST_F(FileIdentityTest, APathThatDoesNotExistYetIsWhereItWouldBeMade) {
  EXPECT_EQ(PhysicalPath(root_ + "/link/none/x"), root_ + "/a/b/none/x");
  EXPECT_EQ(PhysicalPath(root_ + "/link/../none"), root_ + "/a/none");
  EXPECT_EQ(PhysicalPath(root_ + "/none/../link/x"), root_ + "/a/b/x");
  EXPECT_EQ(PhysicalPath(root_ + "/a/none/"), root_ + "/a/none");
  EXPECT_EQ(PhysicalPath("/"), "/");
  const auto parents = PhysicalParents(root_ + "/link/none/x");
  ASSERT_GT(parents.size(), 4);
  EXPECT_EQ(parents[0], root_ + "/a/b/none");
  EXPECT_EQ(parents[1], root_ + "/a/b");
  EXPECT_EQ(parents[3], root_);
  EXPECT_EQ(parents.back(), "/");
}

TEST_F(FileIdentityTest, AChainOfLinksHasEveryPathThatItLeadsOver) {
  fs::create_symlink("b/none", root_ + "/a/second");
  fs::create_symlink(root_ + "/a/second", root_ + "/first");
  EXPECT_THAT(LinkChain(root_ + "/first"), ElementsAre(root_ + "/first", root_ + "/a/second", root_ + "/a/b/none"));
  EXPECT_THAT(LinkChain(root_ + "/a/file"), ElementsAre(root_ + "/a/file"));
  fs::create_symlink("loop", root_ + "/loop");
  EXPECT_GT(LinkChain(root_ + "/loop").size(), 2);  // and it ends
}

TEST_F(FileIdentityTest, BytesAreFreedWhenTheLastNameGoes) {
  fs::create_directories(root_ + "/c/d");
  WriteAll(root_ + "/c/d/own", "123");
  fs::create_hard_link(root_ + "/a/file", root_ + "/c/d/shared");
  fs::create_symlink(root_ + "/a/file", root_ + "/c/symbolic");
  EXPECT_EQ(FreedBytes({root_ + "/c"}), 3);
  EXPECT_EQ(FreedBytes({root_ + "/a"}), 0);
  EXPECT_EQ(FreedBytes({root_ + "/a", root_ + "/c"}), 8);
  EXPECT_EQ(FreedBytes({root_ + "/c/symbolic", root_ + "/link", root_ + "/none"}), 0);
}

}  // namespace
}  // namespace fsdp
