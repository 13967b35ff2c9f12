// SPDX-License-Identifier: Apache-2.0
//
// Large reads give the bytes of the file in the requested order, in every way of reading.
#include "fsdp/checkpoint/storage/read_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/parallel_reads.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int64_t kFileBytes = (9 << 20) + 1234;  // ends within a page

std::string RandomBytes(size_t count) {
  std::minstd_rand random(7);
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

void DropCache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  ASSERT_EQ(fsync(fd), 0);
  ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(fd);
}

// A file without descriptors, as in other file systems.
class PlainFile final : public File {
 public:
  explicit PlainFile(std::shared_ptr<const File> base) : base_(std::move(base)) {}
  const std::string& path() const override { return base_->path(); }
  absl::StatusOr<int64_t> Size() const override { return base_->Size(); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override { return base_->Read(offset, out); }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return absl::UnimplementedError(""); }
  absl::Status Reserve(int64_t) override { return absl::UnimplementedError(""); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override { return nullptr; }
  absl::Status Sync() override { return absl::UnimplementedError(""); }
  bool locked() const override { return false; }

 private:
  const std::shared_ptr<const File> base_;
};

class ReadQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = NewTestDirectory() + "/file";
    bytes_ = RandomBytes(kFileBytes);
    WriteAll(path_, bytes_);
    absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path_);
    ASSERT_OK(file);
    file_ = *std::move(file);
  }

  // Reads ranges of all alignments through a queue of two, `shift` bytes from aligned memory, and compares them.
  void ExpectReads(const std::shared_ptr<const File>& file, UringUse use, int64_t shift) {
    const std::vector<ByteRange> ranges = {{0, 4096},          {4096, 1 << 20},          {5000, 100},
                                           {1, 3 << 20},       {(4 << 20) - 1, 70000},   {kFileBytes - 10, 10},
                                           {8 << 20, 1 << 20}, {kFileBytes - 5000, 5000}};
    std::vector<AlignedBlock> memory;
    ReadQueue queue(2, use);
    size_t finished = 0;
    const auto finish = [&] {
      const ByteRange& range = ranges[finished++];
      ASSERT_OK_AND_ASSIGN(const std::byte* const read, queue.Finish());
      EXPECT_EQ(std::memcmp(read, bytes_.data() + range.offset, range.nbytes), 0) << range.offset;
    };
    for (const ByteRange& range : ranges) {
      if (queue.full()) finish();
      memory.push_back(NewAlignedBlock(WholePages(range).nbytes + shift));
      queue.Start(file, range, memory.back().get() + shift);
    }
    while (!queue.empty()) finish();
  }

  std::string path_;
  std::string bytes_;
  std::shared_ptr<const File> file_;
};

TEST_F(ReadQueueTest, ReadsWhatIsInThePageCache) { ExpectReads(file_, UringUse::kIfPossible, 0); }

TEST_F(ReadQueueTest, ReadsByDirectIo) {
  DropCache(path_);
  ExpectReads(file_, UringUse::kIfPossible, 0);
}

TEST_F(ReadQueueTest, ReadsByDirectIoWithoutAnIoUring) {
  DropCache(path_);
  ExpectReads(file_, UringUse::kNever, 0);
}

TEST_F(ReadQueueTest, ReadsIntoMemoryThatIsNotAligned) {
  DropCache(path_);
  ExpectReads(file_, UringUse::kIfPossible, 3);
}

TEST_F(ReadQueueTest, ReadsAFileWithoutADescriptor) {
  ExpectReads(std::make_shared<PlainFile>(file_), UringUse::kIfPossible, 0);
}

TEST_F(ReadQueueTest, AnEndOfTheFileInTheRangeIsAnErrorOfThatReadAlone) {
  for (const UringUse use : {UringUse::kIfPossible, UringUse::kNever}) {
    DropCache(path_);
    ReadQueue queue(3, use);
    const AlignedBlock memory = NewAlignedBlock(3 << 20);
    queue.Start(file_, {0, 1 << 20}, memory.get());
    queue.Start(file_, {kFileBytes - 100, 101}, memory.get() + (1 << 20));
    queue.Start(file_, {1 << 20, 1 << 20}, memory.get() + (2 << 20));
    EXPECT_OK(queue.Finish());
    EXPECT_THAT(queue.Finish().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends at byte 9438418")));
    EXPECT_OK(queue.Finish());
  }
}

TEST_F(ReadQueueTest, AQueueThatGoesWaitsForItsReads) {
  DropCache(path_);
  const AlignedBlock memory = NewAlignedBlock(8 << 20);
  ReadQueue queue(2);
  queue.Start(file_, {0, 4 << 20}, memory.get());
  queue.Start(file_, {4 << 20, 4 << 20}, memory.get() + (4 << 20));
}

TEST_F(ReadQueueTest, ParallelReadsAreAllDoneOnceAndHaveTheirBytes) {
  DropCache(path_);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(3, "test"));
  constexpr int64_t kReads = 40;
  constexpr int64_t kBytes = 200001;
  std::vector<int> done(kReads);
  ASSERT_OK(ReadInParallel(
      *pool, kReads,
      [&](int64_t i) -> absl::StatusOr<LargeRead> {
        return LargeRead{file_, {i * kBytes, kBytes}};
      },
      [&](int64_t i, const absl::StatusOr<const std::byte*>& bytes) -> absl::Status {
        FSDP_RETURN_IF_ERROR(bytes.status());
        if (std::memcmp(*bytes, bytes_.data() + i * kBytes, kBytes) == 0) ++done[i];
        return absl::OkStatus();
      }));
  EXPECT_EQ(done, std::vector<int>(kReads, 1));
}

TEST_F(ReadQueueTest, TheErrorOfTheFirstParallelReadThatFailsIsReturned) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(2, "test"));
  const absl::Status status = ReadInParallel(
      *pool, 100,
      [&](int64_t i) -> absl::StatusOr<LargeRead> {
        if (i == 9) return absl::NotFoundError("begun 9");
        return LargeRead{file_, {i * 4096, 4096}};
      },
      [&](int64_t i, const absl::StatusOr<const std::byte*>& bytes) -> absl::Status {
        if (i == 7) return absl::DataLossError("done 7");
        return bytes.status();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("done 7")));
}

}  // namespace
}  // namespace fsdp
