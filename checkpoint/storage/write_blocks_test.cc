// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/write_blocks.h"

#include <atomic>
#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::byte ByteAt(int64_t offset) { return static_cast<std::byte>(offset % 251); }

absl::Status FillPattern(int64_t begin, absl::Span<std::byte> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = ByteAt(begin + static_cast<int64_t>(i));
  return absl::OkStatus();
}

class WriteBlocksTest : public testing::Test {
 protected:
  WriteBlocksTest() : path_(NewTestDirectory() + "/file"), pool_(*ThreadPool::Create(2, "test")) {
    file_ = *PosixFileSystem().Create(path_);
  }

  const std::string path_;
  std::unique_ptr<File> file_;
  std::unique_ptr<ThreadPool> pool_;
};

class WriteBlocksSizeTest : public WriteBlocksTest, public testing::WithParamInterface<int64_t> {};

TEST_P(WriteBlocksSizeTest, AFileOfAnySizeIsWhatWasGiven) {
  std::atomic<int64_t> given = 0;
  const BlockFiller fill = [&](int64_t begin, absl::Span<std::byte> out) {
    EXPECT_EQ(begin % kBlockBytes, 0);
    given += static_cast<int64_t>(out.size());
    return FillPattern(begin, out);
  };
  ASSERT_OK(WriteBlocks(*file_, GetParam(), fill, *pool_, 2));
  ASSERT_OK(file_->Sync());
  EXPECT_EQ(given, GetParam());
  const std::string bytes = ReadFile(path_);
  ASSERT_EQ(static_cast<int64_t>(bytes.size()), GetParam());
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(static_cast<std::byte>(bytes[i]), ByteAt(i)) << i;
}

INSTANTIATE_TEST_SUITE_P(Sizes, WriteBlocksSizeTest,
                         testing::Values(0, 1, 4095, 4096, 4097, kBlockBytes, kBlockBytes + 1, 2 * kBlockBytes + 5000));

TEST_F(WriteBlocksTest, ALateWriteStaysAmongDirectOnes) {
  ASSERT_OK(WriteBlocks(*file_, kBlockBytes + 10, FillPattern, *pool_, 2));
  const std::string late = "late";
  ASSERT_OK(file_->Write(100, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(late.data()), late.size())));
  ASSERT_OK(file_->Sync());
  const std::string bytes = ReadFile(path_);
  EXPECT_EQ(bytes.substr(100, 4), late);
  EXPECT_EQ(static_cast<std::byte>(bytes[99]), ByteAt(99));
  EXPECT_EQ(static_cast<std::byte>(bytes[104]), ByteAt(104));
}

TEST_F(WriteBlocksTest, AnErrorOfTheFillerIsThatOfTheWrite) {
  const BlockFiller fill = [](int64_t begin, absl::Span<std::byte> out) {
    if (begin == kBlockBytes) return absl::DataLossError("the second block is lost");
    return FillPattern(begin, out);
  };
  const absl::Status status = WriteBlocks(*file_, 3 * kBlockBytes, fill, *pool_, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("the second block is lost"));
}

TEST(BlockWriteShapeTest, BlocksFitInTheBuffers) {
  const auto shape = [](int64_t blocks, int threads) {
    const BlockWriteShape made = ShapeOfBlockWrites(blocks * kBlockBytes, threads);
    return std::make_pair(made.threads, made.queue_depth);
  };
  EXPECT_EQ(shape(0, 2), std::make_pair(1, 1));
  EXPECT_EQ(shape(1, 2), std::make_pair(1, 1));
  EXPECT_EQ(shape(3, 2), std::make_pair(2, 1));
  EXPECT_EQ(shape(8, 2), std::make_pair(2, 4));
  EXPECT_EQ(shape(1000, 3), std::make_pair(3, 5));
  EXPECT_EQ(shape(8, 0), std::make_pair(1, 5));
}

}  // namespace
}  // namespace fsdp
