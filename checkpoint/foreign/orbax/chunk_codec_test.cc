// SPDX-License-Identifier: Apache-2.0
//
// testdata/blosc/CODEC_SHUFFLE_ELEMENT_BYTES was written by c-blosc 1.21.3: BYTES bytes of Elements().
#include "fsdp/checkpoint/foreign/orbax/chunk_codec.h"

#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/orbax/blosc_chunk.h"
#include "fsdp/checkpoint/foreign/orbax/lz4_block.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_testutil.h"
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::HasSubstr;

constexpr char kBlosc[] = "checkpoint/foreign/orbax/testdata/blosc";

std::string Elements(size_t nbytes) {
  std::string elements;
  for (size_t i = 0; i < nbytes; ++i) elements.push_back(static_cast<char>((i / 16) * (1 + i % 4) % 64));
  return elements;
}

std::string Zstd(const std::string& bytes) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(), 1));
  return frame;
}

std::string Zlib(const std::string& bytes) {
  uLongf nbytes = compressBound(bytes.size());
  std::string stream(nbytes, '\0');
  compress(reinterpret_cast<Bytef*>(stream.data()), &nbytes, reinterpret_cast<const Bytef*>(bytes.data()),
           bytes.size());
  stream.resize(nbytes);
  return stream;
}

absl::StatusOr<std::string> Decode(const ChunkCodec& codec, const std::string& stored, size_t nbytes) {
  std::string out(nbytes, '\0');
  const absl::Status status =
      DecodeChunk(codec, stored, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
  if (!status.ok()) return status;
  return out;
}

std::string WithCrc(const std::string& bytes) { return bytes + FixedBytes(Crc32c(bytes), 4); }

TEST(ChunkCodecTest, EveryCompressorGivesTheElementsAndNoOtherSize) {
  const std::string elements = Elements(1000);
  for (const auto& [compressor, stored] : std::vector<std::pair<Compressor, std::string>>{
           {Compressor::kNone, elements}, {Compressor::kZstd, Zstd(elements)}, {Compressor::kZlib, Zlib(elements)}}) {
    const ChunkCodec codec = {.compressor = compressor};
    EXPECT_THAT(Decode(codec, stored, 1000), IsOkAndHolds(elements));
    EXPECT_THAT(Decode(codec, stored, 999), StatusIs(StatusCode::kDataLoss));
    EXPECT_THAT(Decode(codec, stored, 1001), StatusIs(StatusCode::kDataLoss));
    EXPECT_THAT(Decode(codec, stored.substr(0, stored.size() - 1), 1000), StatusIs(StatusCode::kDataLoss));
    EXPECT_THAT(Decode(codec, stored + "x", 1000), StatusIs(StatusCode::kDataLoss));
    EXPECT_THAT(Decode(codec, "", 1000), StatusIs(StatusCode::kDataLoss));
  }
}

TEST(ChunkCodecTest, CrcsBeforeAndAfterTheCompressorAreCompared) {
  const std::string elements = Elements(1000);
  const ChunkCodec codec = {.compressor = Compressor::kZstd, .crc_of_elements = true, .crc_of_stored = true};
  std::string stored = WithCrc(Zstd(WithCrc(elements)));
  EXPECT_THAT(Decode(codec, stored, 1000), IsOkAndHolds(elements));
  EXPECT_THAT(Decode(codec, WithCrc(Zstd(elements + "crc?")), 1000),
              StatusIs(StatusCode::kDataLoss, HasSubstr("its CRC32C is")));
  stored[3] ^= 1;
  EXPECT_THAT(Decode(codec, stored, 1000), StatusIs(StatusCode::kDataLoss, HasSubstr("its CRC32C is")));
  EXPECT_THAT(Decode(codec, "abc", 1000), StatusIs(StatusCode::kDataLoss, HasSubstr("too short")));
}

TEST(ChunkCodecTest, AZstdFrameIsInflatedUpToABoundWhateverItClaims) {
  const std::string elements(1 << 20, 'x');
  const std::string frame = Zstd(elements);
  ASSERT_LT(frame.size(), 1000u);
  EXPECT_THAT(InflateZstdUpTo(frame, 1 << 20), IsOkAndHolds(elements));
  EXPECT_THAT(InflateZstdUpTo(frame, (1 << 20) - 1), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(InflateZstdUpTo(frame.substr(0, frame.size() - 1), 1 << 20), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(InflateZstdUpTo("", 10), StatusIs(StatusCode::kDataLoss, HasSubstr("truncated")));
  EXPECT_THAT(InflateZstdUpTo(Zstd("a") + Zstd("b"), 10), IsOkAndHolds("ab"));
}

TEST(ChunkCodecTest, ChunksOfBloscAreThoseThatItsLibraryWrote) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kBlosc)) {
    const std::string name = entry.path().filename();
    const std::vector<std::string> parts = absl::StrSplit(name, '_');
    int nbytes = 0;
    if (parts[0] == "blosclz" || !absl::SimpleAtoi(parts[3], &nbytes)) continue;
    const ChunkCodec codec = {.compressor = Compressor::kBlosc};
    const std::string stored = ReadFile(entry.path());
    EXPECT_THAT(Decode(codec, stored, nbytes), IsOkAndHolds(Elements(nbytes))) << name;
    EXPECT_THAT(Decode(codec, stored, nbytes + 1), StatusIs(StatusCode::kDataLoss, HasSubstr("expected"))) << name;
    ++count;
  }
  EXPECT_EQ(count, 26);
}

TEST(ChunkCodecTest, DamagedChunksOfBloscAreNoCrash) {
  for (const auto& entry : fs::directory_iterator(kBlosc)) {
    const std::string stored = ReadFile(entry.path());
    for (size_t size = 0; size < stored.size(); size += 1 + size / 16) {
      EXPECT_FALSE(Decode({.compressor = Compressor::kBlosc}, stored.substr(0, size), 5000).ok());
    }
    for (size_t at = 0; at < stored.size(); ++at) {
      std::string flipped = stored;
      flipped[at] ^= static_cast<char>(1 << (at % 8));
      (void)Decode({.compressor = Compressor::kBlosc}, flipped, 5000);
      (void)Decode({.compressor = Compressor::kBlosc}, flipped, 20008);
    }
  }
}

TEST(ChunkCodecTest, ACodecOfBloscThatIsNotReadIsNamed) {
  const std::string stored = ReadFile(absl::StrCat(kBlosc, "/blosclz_1_4_5000"));
  EXPECT_THAT(Decode({.compressor = Compressor::kBlosc}, stored, 5000),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("blosclz, expected zstd, lz4 or zlib")));
}

TEST(ChunkCodecTest, AMatchOfLz4StaysInsideOfWhatWasMade) {
  std::string out(8, '\0');
  const auto inflate = [&](const std::string& block) {
    return InflateLz4(block, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
  };
  // One literal, a match of 7 at distance 1.
  EXPECT_OK(
      inflate(std::string("\x13"
                          "a\x01\x00",
                          4)));
  EXPECT_EQ(out, "aaaaaaaa");
  EXPECT_FALSE(inflate(std::string("\x13"
                                   "a\x02\x00",
                                   4))
                   .ok());  // before the first byte
  EXPECT_FALSE(inflate(std::string("\x13"
                                   "a\x00\x00",
                                   4))
                   .ok());  // distance 0
  EXPECT_FALSE(inflate(std::string("\x14"
                                   "a\x01\x00",
                                   4))
                   .ok());  // beyond the end
  EXPECT_FALSE(inflate(std::string("\x13"
                                   "a\x01",
                                   3))
                   .ok());             // half a distance
  EXPECT_FALSE(inflate("\xf0").ok());  // a length without its end
}

}  // namespace
}  // namespace fsdp
