// SPDX-License-Identifier: Apache-2.0
//
// Cached pages are copied, and querying other pages does not read them into the cache.
#include "fsdp/checkpoint/storage/cached_pages.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kFileBytes = (6 << 20) + 1234;  // ends within a page
constexpr long kTmpfs = 0x01021994;               // NOLINT: the type of statfs

class CachedPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = NewTestDirectory() + "/file";
    bytes_.resize(kFileBytes);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 7 + i / 4096);
    WriteAll(path, bytes_);
    fd_ = open(path.c_str(), O_RDONLY);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(fsync(fd_), 0);
    struct statfs info;
    ASSERT_EQ(fstatfs(fd_, &info), 0);
    has_disk_ = info.f_type != kTmpfs;
  }
  void TearDown() override { close(fd_); }

  // Makes the page cache hold exactly these pages of the file.
  void KeepOnly(const std::vector<int64_t>& pages) {
    ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
    char byte = 0;
    for (const int64_t page : pages) ASSERT_EQ(pread(fd_, &byte, 1, page * kPage), 1);
  }

  int64_t Read(int64_t offset, std::string& out) {
    return ReadCached(fd_, offset, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
  }

  std::string bytes_;
  int fd_ = -1;
  bool has_disk_ = false;
};

TEST_F(CachedPagesTest, CopiesAllOfAFileThatWasJustWritten) {
  for (const int64_t offset : {int64_t{0}, int64_t{1}, kPage - 1, int64_t{5 << 20}}) {
    std::string out(kFileBytes - offset, '\0');
    EXPECT_EQ(Read(offset, out), kFileBytes - offset);
    EXPECT_EQ(out, bytes_.substr(offset));
  }
}

TEST_F(CachedPagesTest, EndsWhereTheFileEnds) {
  std::string out(kPage, '\0');
  EXPECT_EQ(Read(kFileBytes / kPage * kPage, out), kFileBytes % kPage);
  EXPECT_FALSE(SeemsCached(fd_, kFileBytes - 10, 2 * kPage));
  EXPECT_FALSE(SeemsCached(fd_, 0, 0));
}

TEST_F(CachedPagesTest, LooksAtTheFirstAndTheLastPage) {
  if (!has_disk_) GTEST_SKIP() << "a file in memory is never missing";
  KeepOnly({1, 3});
  EXPECT_TRUE(SeemsCached(fd_, kPage + 100, 200));
  EXPECT_FALSE(SeemsCached(fd_, kPage - 1, 2));
  EXPECT_FALSE(SeemsCached(fd_, 2 * kPage - 1, 2));
  EXPECT_TRUE(SeemsCached(fd_, kPage, 3 * kPage));
}

TEST_F(CachedPagesTest, CopiesUpToAHoleThatItDidNotSee) {
  if (!has_disk_) GTEST_SKIP() << "a file in memory is never missing";
  KeepOnly({1, 3});
  std::string out(3 * kPage, '\0');
  EXPECT_EQ(Read(kPage, out), kPage);
  EXPECT_EQ(out.substr(0, kPage), bytes_.substr(kPage, kPage));
}

TEST_F(CachedPagesTest, AskingReadsNothing) {
  if (!has_disk_) GTEST_SKIP() << "a file in memory is never missing";
  KeepOnly({});
  std::string out(kFileBytes, '\0');
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Read(0, out), 0);
    usleep(1000);  // time for read-ahead, if there were any
  }
}

}  // namespace
}  // namespace fsdp
