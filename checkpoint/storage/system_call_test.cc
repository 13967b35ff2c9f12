// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/system_call.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A file that transfers at most `most` bytes per call, is interrupted before every other call, and fails at `fail_at`.
struct Fickle {
  std::string written;
  size_t most = 3;
  size_t fail_at = std::string::npos;
  int error = 0;
  int calls = 0;

  ssize_t Write(int64_t offset, absl::Span<const std::byte> bytes) {
    if (++calls % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    EXPECT_EQ(offset, static_cast<int64_t>(written.size()));
    if (written.size() >= fail_at) {
      errno = error;
      return error == 0 ? 0 : -1;
    }
    const size_t n = std::min(most, bytes.size());
    written.append(reinterpret_cast<const char*>(bytes.data()), n);
    return static_cast<ssize_t>(n);
  }
};

size_t WriteAll(Fickle& file, const std::string& text) {
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
  return TransferAll<const std::byte>(
      0, bytes, [&](int64_t offset, absl::Span<const std::byte> left) { return file.Write(offset, left); });
}

TEST(SystemCallTest, InterruptsAndShortCountsAreGoneOnFrom) {
  Fickle file;
  EXPECT_EQ(WriteAll(file, "ten bytes!"), 10u);
  EXPECT_EQ(file.written, "ten bytes!");
  EXPECT_EQ(file.calls, 8);
}

TEST(SystemCallTest, AnErrorInTheMiddleIsReportedWithTheBytesDone) {
  Fickle file;
  file.fail_at = 6;
  file.error = ENOSPC;
  EXPECT_EQ(WriteAll(file, "ten bytes!"), 6u);
  EXPECT_EQ(errno, ENOSPC);
}

TEST(SystemCallTest, NoProgressIsNoErrorNumber) {
  Fickle file;
  file.fail_at = 3;
  EXPECT_EQ(WriteAll(file, "ten bytes!"), 3u);
  EXPECT_EQ(errno, 0);
}

}  // namespace
}  // namespace fsdp
