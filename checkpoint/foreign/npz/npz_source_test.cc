// SPDX-License-Identifier: Apache-2.0
//
// Archives that the real NumPy wrote, with the SHA-256 of each array as NumPy read it back, and archives with false
// claims. checkpoint/conformance tests the rules for every format.
#include "fsdp/checkpoint/foreign/npz/npz_source.h"

#include <zlib.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/foreign/npz/npy_header.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string TestData(const std::string& name) { return "checkpoint/foreign/npz/testdata/" + name; }

TEST(NpzSourceTest, ArraysThatAreNoTensorsAreNamedAndLeftOutOnlyWhenAskedFor) {
  EXPECT_THAT(OpenTensorSource(TestData("stored.npz")),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr(R"(left out: "text" (texts), "bytes" (texts); )"),
                                                           HasSubstr("TensorSourceOptions::skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TestData("stored.npz"), {.skip_links = true}));
  EXPECT_THAT(source->left_out(), ElementsAre(R"("text" (texts))", R"("bytes" (texts))"));
}

TEST(NpzSourceTest, AnArrayOfPythonObjectsIsNamedAndNeverRead) {
  EXPECT_THAT(OpenTensorSource(TestData("object_refuse.npz")),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(R"("object" (Python objects, which are a pickle: refused)"),
                             HasSubstr(R"("structured" (structures of several fields))"))));
}

TEST(NpzSourceTest, OneArrayByItselfHasTheNameOfItsFileAndNoCrc) {
  const std::string bytes = ReadFile(TestData("v3.npy"));
  const std::string path = NewTestDirectory() + "/layer.0.npy";
  WriteAll(path, bytes);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  ASSERT_NE(source->contents().FindTensor(StateKey::Model("layer.0")), nullptr);
  EXPECT_FALSE(source->has_checksums());
  WriteAll(path, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(OpenTensorSource(path),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("it has 47 bytes of elements"))));
  WriteAll(path, bytes + "x");
  EXPECT_THAT(OpenTensorSource(path), StatusIs(StatusCode::kDataLoss, HasSubstr("it has 49 bytes of elements")));
}

// An entry of an archive that a test assembles; the fields that can make false claims may be set.
struct Entry {
  std::string name;
  std::string bytes;
  bool is_deflated = false;
  int64_t claimed_bytes = -1;  // instead of the actual number
  uint32_t crc_error = 0;
};

std::string Deflated(const std::string& bytes) {
  std::string out(compressBound(bytes.size()) + 16, '\0');
  z_stream stream = {};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Archive(const std::vector<Entry>& entries) {
  std::string bytes;
  std::string directory;
  for (const Entry& entry : entries) {
    const std::string stored = entry.is_deflated ? Deflated(entry.bytes) : entry.bytes;
    const uint32_t crc =
        Crc32({reinterpret_cast<const std::byte*>(entry.bytes.data()), entry.bytes.size()}) ^ entry.crc_error;
    const int64_t claimed = entry.claimed_bytes < 0 ? std::ssize(entry.bytes) : entry.claimed_bytes;
    std::string common;
    AppendZipInteger(common, 20, 2);
    AppendZipInteger(common, 0, 2);
    AppendZipInteger(common, entry.is_deflated ? 8 : 0, 2);
    AppendZipInteger(common, 0x00210000, 4);
    AppendZipInteger(common, crc, 4);
    AppendZipInteger(common, stored.size(), 4);
    AppendZipInteger(common, claimed, 4);
    AppendZipInteger(common, entry.name.size(), 2);
    AppendZipInteger(common, 0, 2);
    AppendZipInteger(directory, kZipCentralSignature, 4);
    AppendZipInteger(directory, 20, 2);
    directory += common;
    directory.append(10, '\0');
    AppendZipInteger(directory, bytes.size(), 4);
    directory += entry.name;
    AppendZipInteger(bytes, kZipLocalSignature, 4);
    bytes += common + entry.name + stored;
  }
  const size_t at = bytes.size();
  bytes += directory;
  AppendZipInteger(bytes, kZipEndSignature, 4);
  AppendZipInteger(bytes, 0, 4);
  AppendZipInteger(bytes, entries.size(), 2);
  AppendZipInteger(bytes, entries.size(), 2);
  AppendZipInteger(bytes, directory.size(), 4);
  AppendZipInteger(bytes, at, 4);
  AppendZipInteger(bytes, 0, 2);
  return bytes;
}

std::string Npy(DType dtype, const Shape& shape, const std::string& elements) {
  return *EncodeNpyHeader(dtype, shape) + elements;
}

class NpzArchiveTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::vector<Entry>& entries) {
    WriteAll(path_, Archive(entries));
    return OpenTensorSource(path_);
  }

  // Opens the archive and reads all of "w", whose elements are bytes.
  absl::Status ReadAll(const std::vector<Entry>& entries, int64_t numel) {
    FSDP_ASSIGN_OR_RETURN(const auto source, Open(entries));
    std::string bytes(numel, '\0');
    FSDP_RETURN_IF_ERROR(source->Read(StateKey::Model("w"), {0, numel}, bytes.data()));
    return VerifyRest(*source);
  }

  const std::string path_ = NewTestDirectory() + "/x.npz";
};

TEST_F(NpzArchiveTest, ALargeCompressedArrayIsReadInAnyOrderOnManyThreads) {
  constexpr int64_t kNumel = int64_t{3} << 20;
  std::string elements(kNumel, '\0');
  for (int64_t i = 0; i < kNumel; ++i) elements[i] = static_cast<char>(i * 2654435761u >> 13);
  ASSERT_OK_AND_ASSIGN(const auto source, Open({{"w.npy", Npy(DType::kUInt8, Shape({kNumel}), elements), true}}));
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Create(6, "npz"));
  constexpr int64_t kPiece = 100'003;
  EXPECT_OK(pool->ParallelFor(kNumel / kPiece, [&](int64_t i) {
    const int64_t begin = (i * 17 % (kNumel / kPiece)) * kPiece;
    std::string bytes(kPiece, '\0');
    const absl::Status status = source->Read(StateKey::Model("w"), {begin, begin + kPiece}, bytes.data());
    if (!status.ok()) return status;
    return bytes == elements.substr(begin, kPiece) ? absl::OkStatus() : absl::InternalError("other elements");
  }));
  EXPECT_OK(VerifyRest(*source));
}

TEST_F(NpzArchiveTest, ACompressedArrayInFortranOrderComesOutRowMajor) {
  std::string header = *EncodeNpyHeader(DType::kUInt8, Shape({2, 3}));
  header.replace(header.find("False, "), 7, "True,  ");
  ASSERT_OK_AND_ASSIGN(const auto source, Open({{"w.npy", header + "adbecf", true}}));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*source, StateKey::Model("w")));
  EXPECT_EQ(bytes, "abcdef");
}

TEST_F(NpzArchiveTest, AShapeOfMoreOrFewerElementsThanThereAreIsDamage) {
  for (const bool is_deflated : {false, true}) {
    for (const int64_t numel : {int64_t{99}, int64_t{101}, int64_t{1} << 60}) {
      EXPECT_THAT(Open({{"w.npy", Npy(DType::kUInt8, Shape({numel}), std::string(100, 'x')), is_deflated}}),
                  StatusIs(StatusCode::kDataLoss,
                           AllOf(HasSubstr("entry \"w.npy\""), HasSubstr("it has 100 bytes of elements"))));
    }
  }
}

// A kilobyte that claims to be 4 GB would take a trusting reader hours, or all of memory.
TEST_F(NpzArchiveTest, AnEntryThatClaimsMoreThanDeflateCanHoldIsDamage) {
  const std::string array = Npy(DType::kUInt8, Shape({100'000}), std::string(100'000, '\0'));
  EXPECT_THAT(Open({{"w.npy", array, true, 0xF0000000}}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("compressed bytes cannot be the 4026531840 bytes")));
}

TEST_F(NpzArchiveTest, ACompressedEntryThatIsShorterOrLongerThanItSaysIsDamage) {
  const std::string longer = Npy(DType::kUInt8, Shape({120}), std::string(100, 'x'));
  EXPECT_THAT(ReadAll({{"w.npy", longer, true, std::ssize(longer) + 20}}, 120),
              StatusIs(StatusCode::kDataLoss, HasSubstr("it ends at byte")));
  const std::string shorter = Npy(DType::kUInt8, Shape({80}), std::string(100, 'x'));
  EXPECT_THAT(ReadAll({{"w.npy", shorter, true, std::ssize(shorter) - 20}}, 80),
              StatusIs(StatusCode::kDataLoss, HasSubstr("more than the")));
}

TEST_F(NpzArchiveTest, AWrongCrcIsDamageOfStoredAndOfCompressedEntries) {
  for (const bool is_deflated : {false, true}) {
    Entry entry = {"w.npy", Npy(DType::kUInt8, Shape({100}), std::string(100, 'x')), is_deflated};
    EXPECT_OK(ReadAll({entry}, 100));
    entry.crc_error = 1;
    EXPECT_THAT(ReadAll({entry}, 100), StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("w.npy"), HasSubstr("CRC"))));
  }
}

TEST_F(NpzArchiveTest, OtherEntriesAreNamed) {
  EXPECT_THAT(Open({{"w.npy", Npy(DType::kUInt8, Shape({3}), "abc")}, {"README", "text"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(R"("README" (no .npy file))")));
  EXPECT_THAT(Open({{"w.npy", "\x93NUMPZ and more bytes"}}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("does not begin with")));
  EXPECT_THAT(Open({{"w.npy", "short"}}), StatusIs(StatusCode::kDataLoss));
}

}  // namespace
}  // namespace fsdp
