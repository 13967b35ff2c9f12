// SPDX-License-Identifier: Apache-2.0
//
// PosixFile reads the same bytes in every way: from the page cache, by direct I/O in place, or through a block.
#include "fsdp/checkpoint/storage/posix_file.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kFileBytes = 2 * kBlockBytes + 3 * kPageBytes + 123;  // ends within a page

class PosixFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = NewTestDirectory() + "/file";
    bytes_.resize(kFileBytes);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 7 + i / 4096);
    WriteAll(path_, bytes_);
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
    file_.emplace(fd_, path_);
    ASSERT_OK(file_->Sync());
  }

  void DropFromCache() { ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0); }

  std::string path_;
  std::string bytes_;
  int fd_ = -1;
  std::optional<PosixFile> file_;
};

TEST_F(PosixFileTest, LargeReadsBeginAndEndAnywhereInFileAndMemory) {
  std::vector<std::byte> memory(kFileBytes + kPageBytes);
  for (const bool is_cached : {true, false}) {
    for (const int64_t offset : {int64_t{0}, int64_t{1}, kPageBytes - 1, kPageBytes, kPageBytes + 512}) {
      for (const int64_t shift : {0, 8, 512}) {
        const int64_t rest = kFileBytes - offset;
        for (const int64_t nbytes : {int64_t{300'000}, kBlockBytes - 1, kBlockBytes + kPageBytes, rest - 1, rest}) {
          SCOPED_TRACE(absl::StrCat(nbytes, " bytes at ", offset, " to ", shift, is_cached ? ", cached" : ""));
          if (!is_cached) DropFromCache();
          std::fill(memory.begin(), memory.end(), std::byte{0xEE});
          ASSERT_OK(file_->Read(offset, absl::MakeSpan(memory.data() + shift, nbytes)));
          const auto* const read = reinterpret_cast<const char*>(memory.data()) + shift;
          ASSERT_TRUE(std::equal(read, read + nbytes, bytes_.data() + offset));
          EXPECT_EQ(memory[shift + nbytes], std::byte{0xEE});
        }
      }
    }
  }
}

TEST_F(PosixFileTest, AReadBeyondTheEndNamesTheByteWhereTheFileEnds) {
  std::vector<std::byte> memory(kFileBytes);
  for (const bool is_cached : {true, false}) {
    for (const int64_t offset : {int64_t{1}, kPageBytes, kFileBytes - 300'000, kFileBytes}) {
      if (!is_cached) DropFromCache();
      EXPECT_THAT(file_->Read(offset, absl::MakeSpan(memory)),
                  StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr(absl::StrCat("ends at byte ", kFileBytes))));
    }
  }
}

}  // namespace
}  // namespace fsdp
