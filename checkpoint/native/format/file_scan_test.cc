// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/format/file_scan.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/rest_digest.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string Pattern(int64_t nbytes, char salt) {
  std::string bytes(nbytes, salt);
  for (int64_t i = 0; i < nbytes; i += 101) bytes[i] = static_cast<char>(i / 101);
  return bytes;
}

// A file of two extents, one of several blocks, with gaps before, between and after them, and its digests.
struct TestFile {
  std::string path;
  std::string bytes;
  StoredFile stored;
  Digest rest;
};

TestFile MakeFile(const std::string& path, char salt) {
  TestFile file;
  file.path = path;
  file.stored.name = path;
  file.stored.extents = {{{4096, 1000}, {Digest()}}, {{8192, 9 << 20}, std::vector<Digest>(3)}};
  const ByteRange first = file.stored.extents[0].range;
  const ByteRange second = file.stored.extents[1].range;
  file.stored.nbytes = second.end() + 50;
  file.bytes = Pattern(file.stored.nbytes, salt);
  file.rest = DigestOf(std::string_view(file.bytes.substr(0, first.offset) +
                                        file.bytes.substr(first.end(), second.offset - first.end()) +
                                        file.bytes.substr(second.end())));
  WriteAll(path, file.bytes);
  return file;
}

FileScanner Scanner(const std::vector<TestFile>& files, std::map<std::string, std::string>& seen) {
  static std::mutex mutex;
  FileScanner scanner;
  scanner.open = [&](int file) -> absl::StatusOr<std::shared_ptr<const File>> {
    return PosixFileSystem().Open(files[file].path);
  };
  scanner.block = [&](const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    const std::string name = absl::StrCat(block.file, ".", block.extent, ".", block.block);
    EXPECT_TRUE(seen.count(name) == 0) << name;
    const std::string expected = files[block.file].bytes.substr(block.range.offset, block.range.nbytes);
    seen[name] = !bytes.ok() ? std::string(bytes.status().message())
                             : (std::memcmp(*bytes, expected.data(), expected.size()) == 0 ? "same" : "other");
    return absl::OkStatus();
  };
  scanner.rest = [&](int file, const absl::StatusOr<Digest>& digest) {
    const std::lock_guard<std::mutex> lock(mutex);
    seen[absl::StrCat(file, ".rest")] = !digest.ok()                  ? std::string(digest.status().message())
                                        : *digest == files[file].rest ? "same"
                                                                      : "other";
    return absl::OkStatus();
  };
  return scanner;
}

TEST(FileScanTest, EveryBlockAndTheRestOfEachFileAreSeenOnce) {
  const std::string directory = NewTestDirectory();
  const std::vector<TestFile> files = {MakeFile(directory + "/a", 'a'), MakeFile(directory + "/b", 'b')};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(3, "test"));
  std::map<std::string, std::string> seen;
  FileScanner scanner = Scanner(files, seen);
  std::atomic<int64_t> counted = 0;
  scanner.count = [&](int64_t nbytes) { counted += nbytes; };
  ASSERT_OK(ScanFiles({&files[0].stored, &files[1].stored}, *pool, scanner));
  std::map<std::string, std::string> expected;
  for (const char* file : {"0", "1"}) {
    for (const char* part : {".0.0", ".1.0", ".1.1", ".1.2", ".rest"}) expected[std::string(file) + part] = "same";
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(counted, files[0].stored.nbytes + files[1].stored.nbytes);
}

TEST(FileScanTest, AFileThatIsLeftOutIsNotOpened) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(2, "test"));
  std::map<std::string, std::string> seen;
  ASSERT_OK(ScanFiles({nullptr}, *pool, Scanner({}, seen)));
  EXPECT_TRUE(seen.empty());
}

TEST(FileScanTest, AFileThatIsCutShortIsSeenUpToItsEnd) {
  const std::vector<TestFile> files = {MakeFile(NewTestDirectory() + "/a", 'a')};
  ASSERT_EQ(truncate(files[0].path.c_str(), 6 << 20), 0);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(2, "test"));
  std::map<std::string, std::string> seen;
  ASSERT_OK(ScanFiles({&files[0].stored}, *pool, Scanner(files, seen)));
  EXPECT_EQ(seen["0.0.0"], "same");
  EXPECT_EQ(seen["0.1.0"], "same");
  for (const char* name : {"0.1.1", "0.1.2", "0.rest"}) EXPECT_THAT(seen[name], HasSubstr("ends at byte"));
}

TEST(RestDigestTest, PartsThatComeOutOfOrderAreDigestedInOrder) {
  RestDigest rest(4);
  EXPECT_FALSE(rest.Add(2, Bytes("2")));
  EXPECT_FALSE(rest.Add(0, Bytes("0")));
  EXPECT_FALSE(rest.Add(3, Bytes("33")));
  EXPECT_TRUE(rest.Add(1, Bytes("1")));
  ASSERT_OK_AND_ASSIGN(const Digest digest, rest.Finish());
  EXPECT_EQ(digest, DigestOf(std::string_view("01233")));
}

TEST(RestDigestTest, EarlyPartsThatAreKeptAreBounded) {
  const std::string large(20 << 20, 'x');
  RestDigest rest(4);
  EXPECT_FALSE(rest.Add(1, Bytes(large)));
  EXPECT_FALSE(rest.Add(2, Bytes(large)));
  bool last = false;
  std::thread late([&] { last = rest.Add(3, Bytes(large)); });  // waits for part 0
  const bool was_last = rest.Add(0, Bytes("0"));
  late.join();
  EXPECT_NE(last, was_last);
  ASSERT_OK_AND_ASSIGN(const Digest digest, rest.Finish());
  EXPECT_EQ(digest, DigestOf(std::string_view("0" + large + large + large)));
}

TEST(RestDigestTest, TheErrorOfTheFirstPartThatHasOneIsReturned) {
  RestDigest rest(3);
  EXPECT_FALSE(rest.Add(2, absl::DataLossError("of 2")));
  EXPECT_FALSE(rest.Add(1, absl::DataLossError("of 1")));
  EXPECT_TRUE(rest.Add(0, Bytes("0")));
  EXPECT_THAT(rest.Finish().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of 1")));
}

}  // namespace
}  // namespace fsdp
