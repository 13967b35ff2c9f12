// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"

#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// Two entries, with bytes outside any entry before, between and after them.
class EntryChecksumsTest : public testing::Test {
 protected:
  EntryChecksumsTest() {
    checksums_->Expect("data/0", {4, 24}, Crc32(Bytes(text_.substr(4, 20))));
    checksums_->Expect("data/1", {26, 36}, Crc32(Bytes(text_.substr(26, 10))));
  }

  absl::Status Add(int64_t begin, int64_t end) {
    return checksums_->Add(begin, Bytes(text_.substr(begin, end - begin)));
  }

  std::string text_ = "0123456789abcdefghijklmnopqrstuvwxyzABCD";
  std::shared_ptr<EntryChecksums> checksums_ = std::make_shared<EntryChecksums>();
};

TEST_F(EntryChecksumsTest, PiecesInAnyOrderMakeAnEntryWhole) {
  EXPECT_OK(Add(10, 15));
  EXPECT_OK(Add(20, 24));
  EXPECT_OK(Add(4, 10));
  EXPECT_THAT(checksums_->Missing(), ElementsAre(Interval{15, 20}));
  EXPECT_OK(Add(15, 20));
  EXPECT_THAT(checksums_->Missing(), IsEmpty());
  EXPECT_OK(Add(0, 40));  // both entries, and the bytes outside
  EXPECT_THAT(checksums_->Missing(), IsEmpty());
}

TEST_F(EntryChecksumsTest, AMismatchNamesTheEntryAndItsBytesFromThenOn) {
  text_[12] ^= 1;
  EXPECT_OK(Add(4, 14));
  EXPECT_OK(Add(26, 36));
  const absl::Status whole = Add(14, 24);
  EXPECT_EQ(whole.code(), StatusCode::kDataLoss);
  EXPECT_THAT(whole.message(), HasSubstr("entry \"data/0\", bytes 4 to 23: CRC-32 "));
  EXPECT_THAT(whole.message(), HasSubstr(" != recorded "));
  EXPECT_EQ(Add(5, 6), whole);
}

TEST_F(EntryChecksumsTest, BytesReadTwiceCountOnce) {
  EXPECT_OK(Add(26, 30));
  EXPECT_OK(Add(28, 33));  // partly new: waits for VerifyRest
  EXPECT_OK(Add(26, 30));
  EXPECT_THAT(checksums_->Missing(), ElementsAre(Interval{30, 36}));
}

TEST_F(EntryChecksumsTest, AFileComparesWhatIsReadFromItAndTheRestOnDemand) {
  text_[35] ^= 1;
  const ChecksummedFile file(std::make_unique<ByteFile>(text_), checksums_);
  std::string out(6, ' ');
  EXPECT_OK(file.Read(2, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size())));
  EXPECT_EQ(out, "234567");
  EXPECT_OK(ReadForChecksums(file, checksums_->Missing()));
  EXPECT_OK(file.Read(26, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size())));
  EXPECT_THAT(ReadForChecksums(file, checksums_->Missing()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("entry \"data/1\", bytes 26 to 35")));
}

}  // namespace
}  // namespace fsdp
