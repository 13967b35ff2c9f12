// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/foreign/orbax/directory_values.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_testutil.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_dtype.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_metadata.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// .zarray of a [3, 5] array of <i4 in chunks of [2, 3], with members replaced.
std::string Zarray(const std::vector<std::pair<std::string, std::string>>& replaced = {}) {
  std::string json =
      R"({"zarr_format": 2, "shape": [3, 5], "chunks": [2, 3], "dtype": "<i4", "order": "C", "fill_value": 7,)"
      R"( "filters": null, "compressor": null, "dimension_separator": "."})";
  for (const auto& [from, to] : replaced) json = absl::StrReplaceAll(json, {{from, to}});
  return json;
}

std::string ZarrJson(const std::string& codecs, const std::vector<std::pair<std::string, std::string>>& replaced = {}) {
  std::string json =
      absl::StrCat(R"({"zarr_format": 3, "node_type": "array", "shape": [3, 5], "data_type": "int32", "fill_value": 7,)"
                   R"( "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},)"
                   R"( "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [)",
                   codecs, "]}");
  for (const auto& [from, to] : replaced) json = absl::StrReplaceAll(json, {{from, to}});
  return json;
}

constexpr char kBytes[] = R"({"name": "bytes", "configuration": {"endian": "little"}})";
constexpr char kZstd[] = R"({"name": "zstd", "configuration": {"level": 1}})";
constexpr char kCrc[] = R"({"name": "crc32c"})";

std::string Zstd(const std::string& bytes) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(), 1));
  return frame;
}

std::string Ints(const std::vector<int32_t>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t));
}

// The chunk at (i, j) of the [3, 5] array whose element (y, x) is 10 y + x; -1 outside of it.
std::string Chunk(int i, int j, bool is_column_major = false) {
  std::vector<int32_t> values(6);
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 3; ++x) {
      const int row = 2 * i + y;
      const int column = 3 * j + x;
      values[is_column_major ? x * 2 + y : y * 3 + x] = row < 3 && column < 5 ? 10 * row + column : -1;
    }
  }
  return Ints(values);
}

const std::vector<int32_t> kWhole = {0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24};

class ZarrArrayTest : public testing::Test {
 protected:
  void Write(const std::string& key, const std::string& bytes) {
    const std::string path = root_ + "/a/" + key;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    WriteAll(path, bytes);
  }

  // Writes the four chunks, each through `encode`.
  template <typename Encode>
  void WriteChunks(const std::string& prefix, char separator, const Encode& encode) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) Write(absl::StrCat(prefix, i, std::string(1, separator), j), encode(Chunk(i, j)));
    }
  }

  absl::StatusOr<ZarrArray> Open() {
    FSDP_ASSIGN_OR_RETURN(values_, OpenDirectoryValues(root_));
    memory_ = std::make_unique<ChunkMemory>();
    FSDP_ASSIGN_OR_RETURN(ZarrArray array, ZarrArray::Open(*values_, "a", 0, *memory_));
    FSDP_RETURN_IF_ERROR(array.CountMissing());
    return array;
  }

  // Reads all of it, and each interval of it, which must be a part of the whole.
  absl::StatusOr<std::vector<int32_t>> ReadWhole() {
    FSDP_ASSIGN_OR_RETURN(const ZarrArray array, Open());
    std::vector<int32_t> whole(15);
    FSDP_RETURN_IF_ERROR(array.Read({0, 15}, reinterpret_cast<std::byte*>(whole.data())));
    for (int begin = 0; begin <= 15; ++begin) {
      for (int end = begin; end <= 15; ++end) {
        std::vector<int32_t> part(end - begin);
        FSDP_RETURN_IF_ERROR(array.Read({begin, end}, reinterpret_cast<std::byte*>(part.data())));
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin << " " << end;
      }
    }
    return whole;
  }

  const std::string root_ = NewTestDirectory();
  std::unique_ptr<KeyValues> values_;
  std::unique_ptr<ChunkMemory> memory_;
};

std::string Same(const std::string& bytes) { return bytes; }

TEST_F(ZarrArrayTest, ChunksAtTheEdgeAreCut) {
  Write(".zarray", Zarray());
  WriteChunks("", '.', Same);
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(kWhole));
}

TEST_F(ZarrArrayTest, ChunksInFortranOrderAreReadByRows) {
  Write(".zarray", Zarray({{"\"C\"", "\"F\""}, {"null}", "null}"}, {"\".\"", "\"/\""}}));
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) Write(absl::StrCat(i, "/", j), Chunk(i, j, true));
  }
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(kWhole));
}

TEST_F(ZarrArrayTest, BigEndianElementsAreSwapped) {
  Write(".zarray", Zarray({{"<i4", ">i4"}}));
  WriteChunks("", '.', [](std::string bytes) {
    for (auto at = bytes.begin(); at != bytes.end(); at += 4) std::reverse(at, at + 4);
    return bytes;
  });
  std::filesystem::remove(root_ + "/a/1.1");
  std::vector<int32_t> expected = kWhole;
  expected[13] = expected[14] = 7;  // the fill value is swapped, too
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(expected));
}

TEST_F(ZarrArrayTest, ElementsOfAChunkThatIsMissingHaveTheFillValueUnlessAllMustBeThere) {
  Write(".zarray", Zarray());
  WriteChunks("", '.', Same);
  std::filesystem::remove(root_ + "/a/0.1");
  std::vector<int32_t> expected = kWhole;
  for (const int at : {3, 4, 8, 9}) expected[at] = 7;
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(expected));
  ASSERT_OK_AND_ASSIGN(ZarrArray array, Open());
  EXPECT_EQ(array.missing(), 1);
  EXPECT_EQ(array.StoredBytes(), 60);  // three chunks have 72 bytes, more than the array
  array.RequireAllChunks();
  std::vector<int32_t> out(15);
  EXPECT_THAT(array.Read({0, 15}, reinterpret_cast<std::byte*>(out.data())),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("chunk [0, 1]"), HasSubstr("not stored"))));
}

TEST_F(ZarrArrayTest, AChunkOfAnotherSizeIsDamage) {
  Write(".zarray", Zarray());
  WriteChunks("", '.', [](const std::string& bytes) { return bytes + "x"; });
  EXPECT_THAT(ReadWhole(), StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("chunk [0, 0]"), HasSubstr("25 bytes"))));
}

TEST_F(ZarrArrayTest, ChunksOfVersion3AreDecodedByTheirCodecs) {
  Write("zarr.json", ZarrJson(absl::StrCat(kBytes, ",", kZstd, ",", kCrc)));
  WriteChunks("c/", '/', [](const std::string& bytes) {
    const std::string frame = Zstd(bytes);
    return frame + FixedBytes(Crc32c(frame), 4);
  });
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(kWhole));
}

TEST_F(ZarrArrayTest, TransposedChunksAreReadByRows) {
  Write("zarr.json", ZarrJson(absl::StrCat(R"({"name": "transpose", "configuration": {"order": [1, 0]}},)", kBytes),
                              {{"\"default\"", "\"v2\""}, {"\"/\"", "\".\""}}));
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) Write(absl::StrCat(i, ".", j), Chunk(i, j, true));
  }
  EXPECT_THAT(ReadWhole(), IsOkAndHolds(kWhole));
}

// One shard of all four chunks, without the last one.
std::string ShardedJson(const std::string& location) {
  return ZarrJson(
      absl::StrCat(R"({"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 3], "codecs": [)", kBytes, ",",
                   kZstd, R"(], "index_codecs": [)", kBytes, ",", kCrc, R"(], "index_location": ")", location, "\"}}"),
      {{R"("chunk_shape": [2, 3]}},)", R"("chunk_shape": [4, 6]}},)"}});
}

std::string Shard(bool is_index_first) {
  std::string index;
  std::string chunks;
  constexpr size_t kIndexBytes = 4 * 16 + 4;
  for (int i = 0; i < 3; ++i) {
    const std::string frame = Zstd(Chunk(i / 2, i % 2));
    index += FixedBytes(chunks.size() + (is_index_first ? kIndexBytes : 0), 8) + FixedBytes(frame.size(), 8);
    chunks += frame;
  }
  index += FixedBytes(UINT64_MAX, 8) + FixedBytes(UINT64_MAX, 8);
  index += FixedBytes(Crc32c(index), 4);
  return is_index_first ? index + chunks : chunks + index;
}

TEST_F(ZarrArrayTest, ChunksOfAShardAreFoundByItsIndex) {
  std::vector<int32_t> expected = kWhole;
  expected[13] = expected[14] = 7;
  for (const bool is_first : {false, true}) {
    Write("zarr.json", ShardedJson(is_first ? "start" : "end"));
    Write("c/0/0", Shard(is_first));
    EXPECT_THAT(ReadWhole(), IsOkAndHolds(expected));
  }
}

TEST_F(ZarrArrayTest, ADamagedIndexOfAShardIsRefused) {
  Write("zarr.json", ShardedJson("end"));
  const std::string shard = Shard(false);
  std::string flipped = shard;
  flipped[shard.size() - 30] ^= 1;
  Write("c/0/0", flipped);
  EXPECT_THAT(ReadWhole(), StatusIs(StatusCode::kDataLoss, HasSubstr("the index of its shard: its CRC32C is")));
  Write("c/0/0", shard.substr(0, 60));
  EXPECT_THAT(ReadWhole(), StatusIs(StatusCode::kDataLoss, HasSubstr("only its index has 68")));
  const std::string far = FixedBytes(1 << 20, 8) + FixedBytes(10, 8);
  const std::string index = far + far + far + far;
  Write("c/0/0", index + FixedBytes(Crc32c(index), 4));
  EXPECT_THAT(ReadWhole(), StatusIs(StatusCode::kDataLoss, HasSubstr("it is at byte 1048576 of its shard")));
}

// 12 Mi elements in one chunk: 96 MB, more than what is kept.
class LargeChunkTest : public ZarrArrayTest, public testing::WithParamInterface<const char*> {
 protected:
  static constexpr int64_t kNumel = int64_t{12} << 20;

  static int64_t ElementAt(int64_t i) { return i / 100 * 7 + i % 3; }

  void WriteLarge(const std::string& after = "") {
    std::string bytes(kNumel * 8, '\0');
    for (int64_t i = 0; i < kNumel; ++i) {
      const int64_t element = ElementAt(i);
      std::memcpy(bytes.data() + 8 * i, &element, 8);
    }
    Write(".zarray", absl::StrCat(R"({"zarr_format": 2, "shape": [12582912], "chunks": [12582912], "dtype": "<i8",)",
                                  R"( "order": "C", "fill_value": null, "filters": null, "compressor": {"id": ")",
                                  GetParam(), R"("}})"));
    if (std::string(GetParam()) == "zstd") return Write("0", Zstd(bytes) + after);
    uLongf nbytes = compressBound(bytes.size());
    std::string stream(nbytes, '\0');
    compress2(reinterpret_cast<Bytef*>(stream.data()), &nbytes, reinterpret_cast<const Bytef*>(bytes.data()),
              bytes.size(), 1);
    Write("0", stream.substr(0, nbytes) + after);
  }

  static absl::Status CheckPart(const ZarrArray& array, int64_t begin, int64_t end) {
    std::vector<int64_t> part(end - begin);
    FSDP_RETURN_IF_ERROR(array.Read({begin, end}, reinterpret_cast<std::byte*>(part.data())));
    for (int64_t i = begin; i < end; ++i) {
      if (part[i - begin] != ElementAt(i)) return absl::InternalError(absl::StrCat("element ", i));
    }
    return absl::OkStatus();
  }
};

INSTANTIATE_TEST_SUITE_P(Compressors, LargeChunkTest, testing::Values("zstd", "zlib"));

TEST_P(LargeChunkTest, AStreamGivesAnyIntervalOnManyThreads) {
  WriteLarge();
  ASSERT_OK_AND_ASSIGN(const ZarrArray array, Open());
  constexpr int64_t kPieces = 24;
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Create(4, "readers"));
  EXPECT_OK(pool->ParallelFor(
      kPieces, [&](int64_t i) { return CheckPart(array, kNumel / kPieces * i, kNumel / kPieces * (i + 1)); }));
  std::mt19937 random(5);
  for (int i = 0; i < 4; ++i) {
    const auto begin = static_cast<int64_t>(random() % (kNumel - 1000));
    EXPECT_OK(CheckPart(array, begin, begin + 1000));
  }
}

TEST_P(LargeChunkTest, WhatFollowsItsLastElementIsDamage) {
  WriteLarge("x");
  ASSERT_OK_AND_ASSIGN(const ZarrArray array, Open());
  EXPECT_OK(CheckPart(array, 0, 1000));
  EXPECT_THAT(CheckPart(array, kNumel - 1000, kNumel), StatusIs(StatusCode::kDataLoss, HasSubstr("chunk [0]")));
}

TEST(ZarrMetadataTest, KeysOfChunksAreReadBack) {
  ASSERT_OK_AND_ASSIGN(const ZarrMetadata v2, ParseZarray(Zarray()));
  EXPECT_EQ(v2.KeyOf({1, 0}), "1.0");
  EXPECT_EQ(v2.IndexOfKey("1.0"), (std::vector<int64_t>{1, 0}));
  for (const char* key : {"2.0", "0.2", "1", "1.0.0", "01.0", "-1.0", "1.0.tmp", "", "c/1/0"}) {
    EXPECT_FALSE(v2.IndexOfKey(key).has_value()) << key;
  }
  ASSERT_OK_AND_ASSIGN(const ZarrMetadata v3, ParseZarrJson(ZarrJson(kBytes)));
  EXPECT_EQ(v3.KeyOf({1, 0}), "c/1/0");
  EXPECT_EQ(v3.IndexOfKey("c/1/0"), (std::vector<int64_t>{1, 0}));
  EXPECT_FALSE(v3.IndexOfKey("1/0").has_value());
  ASSERT_OK_AND_ASSIGN(const ZarrMetadata scalar, ParseZarray(Zarray({{"[3, 5]", "[]"}, {"[2, 3]", "[]"}})));
  EXPECT_EQ(scalar.KeyOf({}), "0");
  EXPECT_TRUE(scalar.IndexOfKey("0").has_value());
}

TEST(ZarrMetadataTest, WhatIsNotReadIsRefusedByName) {
  const struct {
    std::string from, to, expected;
  } kCases[] = {
      {"\"zarr_format\": 2", "\"zarr_format\": 3", "zarr_format is 3, expected 2"},
      {"\"order\": \"C\"", "\"order\": \"K\"", "order is \"K\""},
      {"[2, 3]", "[2]", "which cannot divide [3, 5]"},
      {"[2, 3]", "[0, 3]", "which cannot divide"},
      {"[3, 5]", "[-3, 5]", "member \"shape\""},
      {"[3, 5]", "[4611686018427387904, 5]", "member \"shape\""},
      {"\"filters\": null", "\"filters\": [{\"id\": \"delta\"}]", "filters"},
      {"\"compressor\": null", "\"compressor\": {\"id\": \"bz2\"}", "compressor \"bz2\" is not read"},
      {"\"compressor\": null, ", "", "member \"compressor\" is missing"},
      {"\"dtype\": \"<i4\", ", "", "member \"dtype\" is missing"},
      {"\".\"", "\"-\"", "dimension_separator"},
      {"7", "\"seven\"", "fill_value seven is no value of int32"},
      {"7", "4294967296", "fill_value 4294967296 is no value of int32"},
      {"[2, 3]", "[1099511627776, 3]", "has more than"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = ParseZarray(Zarray({{test.from, test.to}})).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.expected)) << test.to;
  }
  for (const auto& [codecs, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "codec \"bytes\" is missing"},
           {kZstd, "codecs"},
           {absl::StrCat(kBytes, ",", kZstd, ",", kZstd), "codecs"},
           {absl::StrCat(kBytes, R"(, {"name": "lzma"})"), "compressor \"lzma\" is not read"},
           {absl::StrCat(R"({"name": "transpose", "configuration": {"order": [0, 0]}},)", kBytes), "no permutation"},
           {R"({"name": "bytes", "configuration": {"endian": "middle"}})", "endian"},
           {absl::StrCat(R"({"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 3], "codecs": [)",
                         R"({"name": "sharding_indexed"}], "index_codecs": [)", kBytes, "]}}"),
            "no shards in a shard"}}) {
    const absl::Status status = ParseZarrJson(ZarrJson(codecs)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected)) << codecs;
  }
  EXPECT_THAT(ParseZarrJson(ZarrJson(kBytes, {{"\"regular\"", "\"rectilinear\""}})),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("chunk_grid \"rectilinear\"")));
}

TEST(ZarrMetadataTest, ATypeThatNoTensorHasIsNoError) {
  for (const char* dtype : {"\"float4_e2m1fn\"", "\"|S8\"", "\"<M8[ns]\"", "[[\"a\", \"<i4\"]]", "\"|i4\""}) {
    ASSERT_OK_AND_ASSIGN(const ZarrMetadata array, ParseZarray(Zarray({{"\"<i4\"", dtype}})));
    EXPECT_FALSE(array.dtype.has_value()) << dtype;
  }
}

TEST(NarrowIntegerTest, AByteOfEveryValueBecomesTheNumberAndOthersAreDamage) {
  struct Case {
    const char* name;
    int least;
    int most;
  };
  for (const auto& [name, least, most] : {Case{"int4", -8, 7}, {"uint4", 0, 15}, {"int2", -2, 1}, {"uint2", 0, 3}}) {
    const NarrowInteger integer = *NarrowIntegerOfName(name);
    EXPECT_EQ(ZarrDTypeOfName(name)->dtype, least < 0 ? DType::kInt8 : DType::kUInt8);
    const int count = most - least + 1;
    for (int byte = 0; byte < 256; ++byte) {
      SCOPED_TRACE(absl::StrCat(name, " ", byte));
      // Stored with zeros or with the sign in the upper bits.
      int expected = byte < count ? byte : byte - 256;
      if (byte < count && byte > most) expected = byte - count;
      std::byte bytes[] = {std::byte{0}, static_cast<std::byte>(byte)};
      const absl::Status status = WidenIntegers(integer, {6, 8}, bytes);
      if (expected >= least && expected <= most) {
        EXPECT_OK(status);
        EXPECT_EQ(bytes[1], static_cast<std::byte>(expected));
      } else {
        EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss, HasSubstr(absl::StrCat("element 7 is the byte ", byte,
                                                                                   ", which is no value of ", name))));
      }
    }
  }
  EXPECT_FALSE(NarrowIntegerOfName("int8").has_value());
}

TEST(ZarrDTypeTest, NamesOfNumPyAndOfMlDtypes) {
  EXPECT_EQ(ZarrDTypeOfName("<f4")->dtype, DType::kFloat32);
  EXPECT_EQ(ZarrDTypeOfName("|b1")->dtype, DType::kBool);
  EXPECT_EQ(ZarrDTypeOfName("bfloat16")->dtype, DType::kBFloat16);
  EXPECT_EQ(ZarrDTypeOfName("float8_e4m3fnuz")->dtype, DType::kFloat8E4M3FNUZ);
  EXPECT_TRUE(ZarrDTypeOfName(">c16")->is_swapped);
  EXPECT_FALSE(ZarrDTypeOfName(">i1")->is_swapped);
  EXPECT_FALSE(ZarrDTypeOfName("float8_e4m3b11fnuz").has_value());
}

TEST(ZarrDTypeTest, FillValuesAreBytesOfTheirType) {
  const auto fill = [](const char* dtype, const char* value) {
    const std::string json = absl::StrCat("{\"v\": ", value, "}");
    return FillBytes(*ZarrDTypeOfName(dtype), JsonView::Parse(json)->Find("v"));
  };
  EXPECT_THAT(fill("<i4", "null"), IsOkAndHolds(std::string(4, '\0')));
  EXPECT_THAT(fill("<i2", "-2"), IsOkAndHolds("\xfe\xff"));
  EXPECT_THAT(fill(">i2", "1"), IsOkAndHolds(std::string("\0\1", 2)));
  EXPECT_THAT(fill("<u8", "18446744073709551615"), IsOkAndHolds(std::string(8, '\xff')));
  EXPECT_THAT(fill("<f4", "\"NaN\""), IsOkAndHolds(std::string("\0\0\xc0\x7f", 4)));
  EXPECT_THAT(fill("<f4", "\"0x7fc00001\""), IsOkAndHolds(std::string("\1\0\xc0\x7f", 4)));
  EXPECT_THAT(fill("bfloat16", "1.5"), IsOkAndHolds(std::string("\xc0\x3f", 2)));
  EXPECT_THAT(fill("|b1", "true"), IsOkAndHolds("\1"));
  EXPECT_THAT(fill("<c8", "[1, \"Infinity\"]"), IsOkAndHolds(std::string("\0\0\x80\x3f\0\0\x80\x7f", 8)));
  for (const auto& [dtype, value] : std::vector<std::pair<const char*, const char*>>{
           {"<i2", "65536"}, {"<i4", "\"0x123456789\""}, {"|b1", "2"}, {"<u2", "-1"}, {"<c8", "[1]"}, {"<i4", "{}"}}) {
    EXPECT_THAT(fill(dtype, value), StatusIs(StatusCode::kDataLoss, HasSubstr("is no value of"))) << value;
  }
}

}  // namespace
}  // namespace fsdp
