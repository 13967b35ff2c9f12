// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/contents_digest.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;

class DescribeContentsTest : public testing::Test {
 protected:
  // A file of `text`, in `directory` of the test's.
  std::string FileOf(const std::string& directory, const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(root_ + directory);
    const std::string path = absl::StrCat(root_, directory, "/", name);
    WriteAll(path, text);
    return path;
  }

  // A file of `nbytes` zeros, and `value` at `offset`. It takes no room.
  std::string SparseFile(const std::string& name, int64_t nbytes, int64_t offset, char value) const {
    const std::string path = FileOf("", name, "");
    std::filesystem::resize_file(path, nbytes);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(value);
    return path;
  }

  static std::string Of(const std::vector<std::string>& paths) {
    return DescribeContents(PosixFileSystem(), paths).value();
  }

  const std::string root_ = NewTestDirectory();
};

TEST_F(DescribeContentsTest, CopiesInOtherPlacesAreEqualAndOneChangedByteIsNot) {
  const std::string text = Of({FileOf("/a", "m", "weights")});
  EXPECT_THAT(text, StartsWith("1 file of 7 bytes, digest of all bytes "));
  EXPECT_EQ(text, Of({FileOf("/b", "other_name", "weights")}));
  EXPECT_NE(text, Of({FileOf("/c", "m", "weighty")}));
}

TEST_F(DescribeContentsTest, TheBordersBetweenFilesCount) {
  EXPECT_NE(Of({FileOf("", "a", "12"), FileOf("", "b", "3")}), Of({FileOf("", "c", "1"), FileOf("", "d", "23")}));
  EXPECT_THAT(Of({FileOf("", "e", ""), FileOf("", "f", "123")}), StartsWith("2 files of 3 bytes, "));
}

TEST_F(DescribeContentsTest, OfLargeFilesEvenlySpacedBlocksAreDigestedAndTheTextSaysSo) {
  const int64_t nbytes = 200 * kMiB + 7;
  const std::string text = Of({SparseFile("zeros", nbytes, 0, '\0')});
  EXPECT_THAT(text, StartsWith(absl::StrCat("1 file of ", nbytes, " bytes, digest of 64 MiB of them ")));
  for (const int64_t offset : {int64_t{0}, nbytes - 1, DigestedRanges(nbytes)[31].offset}) {
    EXPECT_NE(text, Of({SparseFile("other", nbytes, offset, 'x')})) << offset;
  }
  EXPECT_NE(text, Of({SparseFile("longer", nbytes + 1, 0, '\0')}));
}

// The end of a zip archive has the CRCs of all its entries.
TEST_F(DescribeContentsTest, TheEndsOfEachFileCount) {
  const std::string second = SparseFile("second", 100 * kMiB, 0, '\0');
  const auto with = [&](int64_t offset) { return Of({SparseFile("first", 101 * kMiB, offset, 'x'), second}); };
  EXPECT_NE(with(101 * kMiB - 1), with(101 * kMiB - 2));
}

TEST_F(DescribeContentsTest, AFileThatIsMissingIsNamed) {
  EXPECT_THAT(DescribeContents(PosixFileSystem(), {root_ + "/none"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

}  // namespace
}  // namespace fsdp
