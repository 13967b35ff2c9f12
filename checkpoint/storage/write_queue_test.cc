// SPDX-License-Identifier: Apache-2.0
//
// All bytes of a file are at their offsets, written directly or through the page cache.
#include "fsdp/checkpoint/storage/write_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::string RandomBytes(size_t count) {
  std::minstd_rand random(11);
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

absl::Span<const std::byte> Bytes(const std::string& text, size_t begin, size_t count) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()) + begin, count);
}

// `new_queue` makes a queue of the file.
void ExpectEveryByteInItsPlace(const std::function<std::unique_ptr<WriteQueue>(File& file)>& new_queue) {
  const std::string bytes = RandomBytes(40 << 20);
  const std::string path = NewTestDirectory() + "/file";
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file, PosixFileSystem().Create(path));
  ASSERT_OK(file->Reserve(static_cast<int64_t>(bytes.size())));
  {
    const std::unique_ptr<WriteQueue> queue = new_queue(*file);
    std::vector<std::pair<size_t, size_t>> between;
    size_t at = 0;
    for (int i = 0; at < bytes.size(); ++i) {
      // From the bytes' own memory and from the queue's memory, at aligned and other offsets, whole sectors and others.
      const size_t sizes[] = {kBlockBytes, 4096, 1000, size_t{1} << 20, 513, 96, (size_t{2} << 20) + 7};
      size_t count = std::min(sizes[i % 7], bytes.size() - at);
      if (i % 3 == 0) {
        ASSERT_OK_AND_ASSIGN(std::byte* const scratch, queue->Buffer());
        std::memcpy(scratch, bytes.data() + at, count);
        ASSERT_OK(queue->Write(static_cast<int64_t>(at), absl::MakeConstSpan(scratch, count)));
      } else {
        ASSERT_OK(queue->Write(static_cast<int64_t>(at), Bytes(bytes, at, count)));
      }
      at += count;
      const size_t sector = (at + 4095) / 4096 * 4096;  // every second one begins at a sector
      if (i % 2 == 0 && sector < bytes.size()) {
        between.emplace_back(at, sector);
        at = sector;
      }
    }
    ASSERT_OK(queue->Drain());
    ASSERT_OK(queue->Finish());
    for (const auto& [begin, end] : between) {
      ASSERT_OK(file->Write(static_cast<int64_t>(begin), Bytes(bytes, begin, end - begin)));
    }
  }
  ASSERT_OK(file->Sync());
  EXPECT_TRUE(ReadFile(path) == bytes);
}

TEST(WriteQueueTest, PutsEveryByteInItsPlaceHoweverItIsAligned) {
  ExpectEveryByteInItsPlace([](File& file) { return file.NewWriteQueue(3); });
}

TEST(WriteQueueTest, PutsEveryByteInItsPlaceByDirectIoWithoutAnIoUring) {
  ExpectEveryByteInItsPlace([](File& file) -> std::unique_ptr<WriteQueue> {
    const auto plain = [&file](int64_t offset, absl::Span<const std::byte> bytes) { return file.Write(offset, bytes); };
    const File::Descriptors descriptors = file.descriptors();
    if (descriptors.direct < 0) return NewSynchronousWriteQueue(plain);
    return NewDirectWriteQueue(descriptors.direct, descriptors.alignment, 3, file.path(), plain, UringUse::kNever);
  });
}

TEST(WriteQueueTest, LargeReadsAreTheSameWhateverTheyAreReadWith) {
  const std::string bytes = RandomBytes(9 << 20);
  const std::string path = NewTestDirectory() + "/file";
  WriteAll(path, bytes);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  const AlignedBlock memory = NewAlignedBlock(9 << 20);
  for (const bool is_cold : {false, true}) {
    if (is_cold) {
      const int fd = open(path.c_str(), O_RDONLY);
      ASSERT_EQ(fsync(fd), 0);
      ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
      close(fd);
    }
    for (const int64_t begin : {0, 4096, 4097, 1 << 20}) {
      for (const int64_t shift : {0, 1}) {
        const auto count = static_cast<int64_t>(bytes.size()) - begin;
        std::byte* const out = memory.get() + (begin > 0 ? shift : 0);
        ASSERT_OK(file->Read(begin, absl::MakeSpan(out, count)));
        EXPECT_EQ(std::memcmp(out, bytes.data() + begin, count), 0) << begin << " " << shift;
      }
    }
    EXPECT_THAT(file->Read(4096, absl::MakeSpan(memory.get(), 9 << 20)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends at byte 9437184")));
  }
}

// A write to a full pipe stays in flight until the test reads from the pipe.
TEST(WriteQueueTest, ABlockIsMadeWhileTheOthersAreInFlight) {
  constexpr size_t kWriteBytes = 512;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto full = static_cast<size_t>(fcntl(ends[1], F_SETPIPE_SZ, 4096));
  const std::string filling(full, 'f');
  ASSERT_EQ(write(ends[1], filling.data(), full), static_cast<ssize_t>(full));
  std::promise<void> asked;
  std::string read_back;
  std::thread reader([&, third = asked.get_future()] {
    EXPECT_EQ(third.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "two in flight block a third";
    char bytes[kWriteBytes];
    for (ssize_t got; (got = read(ends[0], bytes, sizeof(bytes))) > 0;) read_back.append(bytes, got);
  });
  bool has_ring = true;
  bool was_asked = false;
  {
    const auto plain = [](int64_t, absl::Span<const std::byte>) { return absl::OkStatus(); };
    const std::unique_ptr<WriteQueue> queue = NewDirectWriteQueue(ends[1], {1, kWriteBytes}, 3, "PIPE", plain);
    for (const char c : {'a', 'b', 'c'}) {
      const absl::StatusOr<std::byte*> scratch = queue->Buffer();
      has_ring = has_ring && scratch.ok();
      if (!has_ring) break;
      if (c == 'c') {
        asked.set_value();
        was_asked = true;
      }
      std::memset(*scratch, c, kWriteBytes);
      has_ring = queue->Write(0, absl::MakeConstSpan(*scratch, kWriteBytes)).ok();
    }
    if (has_ring) {
      EXPECT_OK(queue->Drain());
    }
  }
  close(ends[1]);
  if (!was_asked) asked.set_value();
  reader.join();
  close(ends[0]);
  if (!has_ring) GTEST_SKIP() << "there is no io_uring here, and nothing is in flight without it";
  EXPECT_EQ(read_back.size(), full + 3 * kWriteBytes);
}

TEST(WriteQueueTest, AnErrorOfAWriteIsTheDrains) {
  const std::string path = NewTestDirectory() + "/file";
  WriteAll(path, "");
  const int fd = open(path.c_str(), O_RDONLY);  // not for writing
  const auto plain = [](int64_t, absl::Span<const std::byte>) { return absl::OkStatus(); };
  for (const UringUse use : {UringUse::kIfPossible, UringUse::kNever}) {
    const std::unique_ptr<WriteQueue> queue = NewDirectWriteQueue(fd, {1, 512}, 2, "NAME", plain, use);
    const std::string bytes(8192, 'x');
    (void)queue->Write(4096, Bytes(bytes, 0, 8192));
    EXPECT_THAT(std::string(queue->Drain().message()),
                HasSubstr("cannot write 8192 bytes at 4096 of NAME: Bad file descriptor (errno 9)"));
    EXPECT_FALSE(queue->Buffer().ok());
  }
  close(fd);
}

TEST(WriteQueueTest, ASynchronousQueueReturnsTheErrorAtOnce) {
  const std::unique_ptr<WriteQueue> queue = NewSynchronousWriteQueue(
      [](int64_t, absl::Span<const std::byte>) { return absl::ResourceExhaustedError("the disk is full"); });
  EXPECT_THAT(queue->Write(0, Bytes("x", 0, 1)), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

}  // namespace
}  // namespace fsdp
