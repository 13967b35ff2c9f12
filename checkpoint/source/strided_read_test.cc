// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/strided_read.h"

#include <cstring>
#include <memory>
#include <random>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Counts the bytes that are read, to test that few are wasted.
class CountingFile final : public File {
 public:
  explicit CountingFile(std::string bytes) : file_(std::move(bytes)) {}
  const std::string& path() const override { return file_.path(); }
  absl::StatusOr<int64_t> Size() const override { return file_.Size(); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    ++reads;
    bytes += static_cast<int64_t>(out.size());
    return file_.Read(offset, out);
  }
  absl::Status Write(int64_t offset, absl::Span<const std::byte> data) override { return file_.Write(offset, data); }
  absl::Status Reserve(int64_t nbytes) override { return file_.Reserve(nbytes); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int depth) override { return file_.NewWriteQueue(depth); }
  absl::Status Sync() override { return file_.Sync(); }
  bool locked() const override { return false; }

  mutable int64_t reads = 0;
  mutable int64_t bytes = 0;

 private:
  ByteFile file_;
};

// int32 elements 0, 1, 2, ...
std::string Numbers(int32_t count) {
  std::string bytes(count * sizeof(int32_t), '\0');
  for (int32_t i = 0; i < count; ++i) std::memcpy(&bytes[i * sizeof(i)], &i, sizeof(i));
  return bytes;
}

void Visit(const StridedBox& box, size_t d, int64_t from, int64_t to, const std::vector<int32_t>& out) {
  if (d == box.dims.size()) {
    ASSERT_EQ(out[to], box.offset / box.element_size + from);
    return;
  }
  for (int64_t i = 0; i < box.dims[d].count; ++i) {
    Visit(box, d + 1, from + i * box.dims[d].from_stride, to + i * box.dims[d].to_stride, out);
  }
}

TEST(StridedReadTest, EveryElementComesToItsPlace) {
  std::mt19937 random(1);
  const CountingFile file(Numbers(20'000));
  for (int trial = 0; trial < 300; ++trial) {
    StridedBox box = {static_cast<int64_t>(random() % 100) * 4, 4, {}};
    int64_t numel = 1;
    for (size_t d = random() % 4; d > 0; --d) {
      const auto count = static_cast<int64_t>(1 + random() % 7);
      box.dims.insert(box.dims.begin(), {count, static_cast<int64_t>(random() % 400), numel});
      numel *= count;
    }
    std::vector<int32_t> out(numel, -1);
    ASSERT_OK(ReadStrided(file, box, reinterpret_cast<std::byte*>(out.data())));
    Visit(box, 0, 0, 0, out);
  }
}

TEST(StridedReadTest, RowsOfAWholeTensorAreOneRead) {
  const CountingFile file(Numbers(6000));
  std::vector<int32_t> out(6000);
  ASSERT_OK(
      ReadStrided(file, {0, 4, {{20, 300, 300}, {30, 10, 10}, {10, 1, 1}}}, reinterpret_cast<std::byte*>(out.data())));
  EXPECT_EQ(file.reads, 1);
}

// A piece of a transposed matrix needs a few bytes of every row of the file, and little more is read.
TEST(StridedReadTest, AColumnOfALargeMatrixDoesNotReadItWhole) {
  const CountingFile file(Numbers(4'000'000));  // 1000 x 4000
  std::vector<int32_t> out(100 * 1000);
  ASSERT_OK(ReadStrided(file, {0, 4, {{100, 1, 1000}, {1000, 4000, 1}}}, reinterpret_cast<std::byte*>(out.data())));
  EXPECT_EQ(out[3 * 1000 + 7], 7 * 4000 + 3);
  EXPECT_LE(file.bytes, 5 * 400'000);
}

TEST(StridedReadTest, ABoxBeyondTheFileIsAnError) {
  const ByteFile file(Numbers(10));
  std::vector<int32_t> out(4);
  EXPECT_THAT(ReadStrided(file, {0, 4, {{4, 3, 1}}}, reinterpret_cast<std::byte*>(out.data())), IsOk());
  EXPECT_THAT(ReadStrided(file, {4, 4, {{4, 3, 1}}}, reinterpret_cast<std::byte*>(out.data())),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace fsdp
