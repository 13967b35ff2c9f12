// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/nearby_reads.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The reads that a file in memory has had.
struct Reads {
  std::atomic<int64_t> count = 0;
  std::atomic<int64_t> bytes = 0;
};

class FakeFile final : public File {
 public:
  FakeFile(std::string bytes, std::shared_ptr<Reads> reads) : bytes_(std::move(bytes)), reads_(std::move(reads)) {}

  const std::string& path() const override { return path_; }
  absl::StatusOr<int64_t> Size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    ++reads_->count;
    reads_->bytes += static_cast<int64_t>(out.size());
    const auto size = static_cast<int64_t>(bytes_.size());
    if (offset > size || static_cast<int64_t>(out.size()) > size - offset) {
      return absl::DataLossError(absl::StrCat("the file ends at byte ", size));
    }
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return absl::UnimplementedError("read only"); }
  absl::Status Reserve(int64_t) override { return absl::UnimplementedError("read only"); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override { return nullptr; }
  absl::Status Sync() override { return absl::OkStatus(); }
  bool locked() const override { return false; }

 private:
  const std::string path_ = "fake";
  const std::string bytes_;
  const std::shared_ptr<Reads> reads_;
};

std::string Pattern(int64_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// The bytes of one read; the error's message if it fails.
std::string ReadText(const File& file, int64_t offset, int64_t size) {
  std::string text(size, '\0');
  const absl::Status status = file.Read(offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), size));
  return status.ok() ? text : std::string(status.message());
}

class NearbyReadsTest : public testing::Test {
 protected:
  NearbyReads Open(const std::string& bytes) { return NearbyReads(std::make_unique<FakeFile>(bytes, reads_)); }

  const std::shared_ptr<Reads> reads_ = std::make_shared<Reads>();
};

// Regression: 300,000 tensors of 373 bytes were as many system calls.
TEST_F(NearbyReadsTest, ThousandsOfSmallReadsAreFewReadsOfTheFile) {
  for (const int64_t size : {1, 40, 373, 4096}) {
    const std::string bytes = Pattern(4000 * size, 1);
    const NearbyReads file = Open(bytes);
    reads_->count = reads_->bytes = 0;
    for (int64_t i = 0; i < 4000; ++i) ASSERT_EQ(ReadText(file, i * size, size), bytes.substr(i * size, size)) << i;
    const int64_t blocks = 4000 * size / NearbyReads::kMemoryBytes + 1;
    EXPECT_LE(reads_->count, 3 + 2 * blocks) << size;
    EXPECT_LE(reads_->bytes, 4000 * size + 3 * size + (blocks + 1) * 2 * 4096) << size;
  }
}

TEST_F(NearbyReadsTest, ReadsInAnotherOrderThanTheFileAreFewToo) {
  const std::string bytes = Pattern(400'000, 2);
  const NearbyReads file = Open(bytes);
  // Groups of four in reverse, as names in the order of the alphabet.
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t offset = (i / 4 * 4 + 3 - i % 4) * 400;
    ASSERT_EQ(ReadText(file, offset, 400), bytes.substr(offset, 400)) << i;
  }
  EXPECT_LE(reads_->count, 100);
}

TEST_F(NearbyReadsTest, LargeAndScatteredReadsGoToTheFileUnchanged) {
  const std::string bytes = Pattern(1'000'000, 3);
  const NearbyReads file = Open(bytes);
  for (const int64_t offset : {900'000, 100'000, 100'030, 300'000, 300'030, 500'000, 0}) {
    EXPECT_EQ(ReadText(file, offset, 30), bytes.substr(offset, 30));
  }
  EXPECT_EQ(reads_->bytes, 7 * 30);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(ReadText(file, i * 5000, 5000), bytes.substr(i * 5000, 5000));
  EXPECT_EQ(reads_->bytes, 7 * 30 + 10 * 5000);
}

TEST_F(NearbyReadsTest, FilesThatAreReadInTurnKeepTheirBytes) {
  std::vector<std::string> bytes;
  std::vector<std::unique_ptr<NearbyReads>> files;
  for (unsigned i = 0; i < 3; ++i) {
    bytes.push_back(Pattern(50'000, i));
    files.push_back(std::make_unique<NearbyReads>(std::make_unique<FakeFile>(bytes.back(), reads_)));
  }
  for (int64_t at = 0; at < 50'000; at += 100) {
    for (size_t i = 0; i < files.size(); ++i) ASSERT_EQ(ReadText(*files[i], at, 100), bytes[i].substr(at, 100));
  }
  // A new file, perhaps at the address of an old one.
  files.clear();
  const NearbyReads file = Open(bytes[0]);
  for (int64_t at = 0; at < 5000; at += 100) ASSERT_EQ(ReadText(file, at, 100), bytes[0].substr(at, 100));
}

TEST_F(NearbyReadsTest, AReadBeyondTheEndHasTheErrorOfTheFile) {
  const NearbyReads file = Open(Pattern(1050, 4));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(ReadText(file, i * 100, 100).size(), 100);
  EXPECT_EQ(ReadText(file, 1000, 100), "the file ends at byte 1050");
  EXPECT_EQ(ReadText(file, 5000, 1), "the file ends at byte 1050");
  EXPECT_EQ(ReadText(file, 1000, 50).size(), 50);
}

TEST_F(NearbyReadsTest, AnyReadsOfAnyThreadsReturnTheBytesOfTheFile) {
  const std::string bytes = Pattern(700'000, 5);
  const NearbyReads file = Open(bytes);
  const auto work = [&](unsigned seed) {
    std::minstd_rand random(seed);
    int64_t at = 0;
    for (int i = 0; i < 20'000; ++i) {
      const auto below = [&](int64_t limit) { return static_cast<int64_t>(random()) % limit; };
      const int64_t size = below(i % 50 == 0 ? 9000 : 500);
      at = below(20) == 0 ? below(690'000) : std::clamp<int64_t>(at + below(800) - 300, 0, 690'000);
      ASSERT_EQ(ReadText(file, at, size), bytes.substr(at, size)) << at << " " << size;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fsdp
