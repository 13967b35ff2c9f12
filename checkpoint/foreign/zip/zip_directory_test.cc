// SPDX-License-Identifier: Apache-2.0
//
// Archives that contradict themselves, made from a real PyTorch archive by changing a few bytes.
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"

#include <fstream>
#include <iterator>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::string Golden() {
  std::ifstream file(TorchTestData("full.pt"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<std::vector<ZipEntry>> Read(const std::string& bytes) {
  const ByteFile file(bytes);
  return ReadZipDirectory({&file, 0, static_cast<int64_t>(bytes.size())});
}

void Put(std::string& bytes, size_t at, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

std::string Signature(uint32_t signature) {
  std::string bytes;
  AppendZipInteger(bytes, signature, 4);
  return bytes;
}

// The offset of the n-th record of the central directory.
size_t CentralRecord(const std::string& bytes, int n) {
  size_t at = bytes.find(Signature(kZipCentralSignature));
  for (int i = 0; i < n; ++i) at = bytes.find(Signature(kZipCentralSignature), at + 4);
  return at;
}

TEST(ZipDirectoryTest, PayloadIsFoundBehindLocalHeaders) {
  const std::string bytes = Golden();
  ASSERT_OK_AND_ASSIGN(const std::vector<ZipEntry> entries, Read(bytes));
  ASSERT_GT(entries.size(), 5);
  EXPECT_EQ(entries[0].name, "full/data.pkl");
  EXPECT_EQ(bytes.substr(entries[0].payload_offset, 2), "\x80\x02");
  for (const ZipEntry& entry : entries) {
    EXPECT_TRUE(entry.is_stored());
    EXPECT_EQ(entry.payload_offset % 64, 0) << entry.name;
  }
}

TEST(ZipDirectoryTest, ASliceIsReadWithItsOwnOffsets) {
  const std::string bytes = Golden();
  const ByteFile file("12345" + bytes + "678");
  ASSERT_OK_AND_ASSIGN(const auto entries, ReadZipDirectory({&file, 5, static_cast<int64_t>(bytes.size())}));
  EXPECT_EQ(entries[0].payload_offset % 64, 0);
}

TEST(ZipDirectoryTest, ZipSixtyFourIsReadWhereTheOldEndOverflows) {
  std::string bytes = Golden();
  const size_t end = bytes.rfind(Signature(kZipEndSignature));
  Put(bytes, end + 8, kZipMax16, 2);
  Put(bytes, end + 10, kZipMax16, 2);
  Put(bytes, end + 12, kZipMax32, 4);
  Put(bytes, end + 16, kZipMax32, 4);
  EXPECT_OK(Read(bytes));
  Put(bytes, bytes.rfind(Signature(kZip64LocatorSignature)), 0, 4);
  EXPECT_THAT(Read(bytes),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("central directory is outside the archive")));
}

TEST(ZipDirectoryTest, EncryptionIsRefusedByName) {
  std::string bytes = Golden();
  Put(bytes, CentralRecord(bytes, 0) + 8, kZipEncryptedFlag, 2);
  EXPECT_THAT(Read(bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("entry \"full/data.pkl\" is encrypted")));
}

TEST(ZipDirectoryTest, EntriesMayNotOverlap) {
  std::string bytes = Golden();
  const size_t record = CentralRecord(bytes, 0);
  Put(bytes, record + 20, ZipInteger(bytes, record + 20, 4) + 5000, 4);
  Put(bytes, record + 24, ZipInteger(bytes, record + 24, 4) + 5000, 4);
  EXPECT_THAT(Read(bytes), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("overlap")));
}

TEST(ZipDirectoryTest, ANameThatIsThereTwiceIsRefused) {
  std::string bytes = Golden();
  // data/0 and data/1: the records and the local headers.
  for (size_t at = bytes.find("full/data/1"); at != bytes.npos; at = bytes.find("full/data/1", at + 1)) {
    if (bytes[at + 11] < '0' || bytes[at + 11] > '9') bytes[at + 10] = '0';
  }
  EXPECT_THAT(Read(bytes), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("two entries have this name")));
}

TEST(ZipDirectoryTest, NamesThatLeadElsewhereAreRefused) {
  for (const std::string name : {"../../../pkl", "/ull/dat.pkl", "full\\dat.pkl", "full/../dpkl"}) {
    std::string bytes = Golden();
    bytes.replace(CentralRecord(bytes, 0) + kZipCentralBytes, name.size(), name);
    EXPECT_THAT(Read(bytes).status().code(), testing::AnyOf(absl::StatusCode::kInvalidArgument)) << name;
  }
}

TEST(ZipDirectoryTest, LocalHeadersMustAgree) {
  std::string bytes = Golden();
  bytes[kZipLocalBytes] = 'F';
  EXPECT_THAT(Read(bytes),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its local header names \"Full/data.pkl\"")));
}

TEST(ZipDirectoryTest, EveryTruncationIsNoticed) {
  const std::string bytes = Golden();
  for (size_t length = 0; length < bytes.size(); length += 7) {
    EXPECT_THAT(Read(bytes.substr(0, length)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("zip archive")));
  }
}

TEST(ZipDirectoryTest, SlicesBeforeOthersAreNotTakenForTheEnd) {
  EXPECT_THAT(Read(Golden() + "trailing bytes"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("end record is missing")));
}

}  // namespace
}  // namespace fsdp
