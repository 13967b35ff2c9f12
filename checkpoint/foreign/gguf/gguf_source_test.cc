// SPDX-License-Identifier: Apache-2.0
//
// Particulars of GGUF: splits, types, metadata. checkpoint/conformance reads the files of testdata/, which gguf-py and
// ggml wrote, with the SHA-256 of each tensor as gguf-py dequantizes it.
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_driver.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_testutil.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

std::string TestData(const std::string& name) { return "checkpoint/foreign/gguf/testdata/" + name; }

absl::StatusOr<std::unique_ptr<TensorSource>> Open(const GgufBytes& bytes, const TensorSourceOptions& options = {}) {
  return OpenGgufFile(std::make_unique<ByteFile>(bytes.ToString()), options);
}

// A writable copy of the three parts of a model.
std::string CopyOfSplit() {
  const std::string directory = NewTestDirectory();
  for (const auto& entry : fs::directory_iterator(TestData("split"))) {
    WriteAll(directory + "/" + entry.path().filename().string(), ReadFile(entry.path()));
  }
  return directory;
}

std::string Part(int number) { return absl::StrCat("/model-0000", number, "-of-00003.gguf"); }

TEST(GgufSourceTest, AnyPartOpensTheWholeModel) {
  for (const char* path : {"split", "split/model-00001-of-00003.gguf", "split/model-00002-of-00003.gguf",
                           "split/model-00003-of-00003.gguf"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(TestData(path)));
    EXPECT_EQ(source->contents().entries().size(), 5) << path;
    EXPECT_EQ(source->files().size(), 3) << path;
    EXPECT_EQ(source->metadata().at("general.name"), "split") << path;
  }
}

TEST(GgufSourceTest, AMissingPartIsNamed) {
  for (int missing = 1; missing <= 3; ++missing) {
    const std::string directory = CopyOfSplit();
    fs::remove(directory + Part(missing));
    EXPECT_THAT(OpenGgufSource(directory),
                StatusIs(StatusCode::kNotFound, AllOf(HasSubstr(Part(missing) + " does not exist"),
                                                      HasSubstr(absl::StrCat("part ", missing, " of 3")))));
  }
}

TEST(GgufSourceTest, PartsThatChangedPlacesAreRefused) {
  const std::string directory = CopyOfSplit();
  fs::rename(directory + Part(2), directory + "/x");
  fs::rename(directory + Part(3), directory + Part(2));
  fs::rename(directory + "/x", directory + Part(3));
  EXPECT_THAT(OpenGgufSource(directory + Part(1)),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr(Part(2) + " is, by its keys, part 3 of 3"), HasSubstr("expected part 2 of 3"))));
}

TEST(GgufSourceTest, APartUnderAnotherNameIsRefused) {
  const std::string directory = CopyOfSplit();
  fs::copy(directory + Part(2), directory + "/renamed.gguf");
  EXPECT_THAT(OpenGgufSource(directory + "/renamed.gguf"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("is part 2 of 3"), HasSubstr("NAME-00002-of-00003.gguf"))));
  const std::string whole = directory + "/whole-00001-of-00002.gguf";
  WriteAll(whole, ReadFile(TestData("big_endian/model.gguf")));
  EXPECT_THAT(OpenGgufSource(whole),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has the name of part 1 of 2, but no split.count")));
}

TEST(GgufSourceTest, APartOfAnotherModelIsFoundByTheNumberOfTensors) {
  const std::string directory = NewTestDirectory();
  const auto part = [&](int number, std::vector<GgufBytes::Tensor> tensors, int total) {
    WriteAll(directory + absl::StrCat("/m-0000", number + 1, "-of-00002.gguf"),
             GgufBytes{.keys = {GgufU16("split.no", number), GgufU16("split.count", 2),
                                GgufI32("split.tensors.count", total)},
                       .tensors = std::move(tensors)}
                 .ToString());
  };
  part(0, {{"a", {1}, 0, "1234"}}, 2);
  part(1, {{"b", {1}, 0, "1234"}}, 2);
  EXPECT_OK(OpenGgufSource(directory).status());
  part(1, {{"b", {1}, 0, "1234"}, {"c", {1}, 0, "1234"}}, 2);
  EXPECT_THAT(OpenGgufSource(directory),
              StatusIs(StatusCode::kDataLoss, HasSubstr("have 3 tensors, but split.tensors.count is 2")));
  part(1, {{"b", {1}, 0, "1234"}}, 3);
  EXPECT_THAT(OpenGgufSource(directory), StatusIs(StatusCode::kDataLoss, HasSubstr("of 3 tensors")));
  part(1, {{"a", {1}, 0, "1234"}}, 2);
  EXPECT_THAT(OpenGgufSource(directory), StatusIs(StatusCode::kDataLoss, HasSubstr("\"a\" is in an earlier part")));
}

// gguf-py aligns every part by the key that only the first has; llama.cpp by the default.
TEST(GgufSourceTest, PartsAreAlignedByTheKeyOfTheFirstOrByTheDefault) {
  const auto part = [&](const std::string& directory, int number, size_t alignment) {
    GgufBytes bytes = {
        .keys = {GgufU16("split.no", number), GgufU16("split.count", 2), GgufI32("split.tensors.count", 3)},
        .tensors = {{absl::StrCat("t", number), {1}, 0, "1234"}},
        .alignment = alignment};
    if (number == 0) bytes.keys.push_back(GgufU32("general.alignment", 64));
    if (number == 1) bytes.tensors.push_back({"last", {2}, 0, "abcdefgh"});
    WriteAll(directory + absl::StrCat("/m-0000", number + 1, "-of-00002.gguf"), bytes.ToString());
  };
  for (const size_t alignment : {32, 64}) {
    const std::string directory = NewTestDirectory();
    part(directory, 0, 64);
    part(directory, 1, alignment);
    ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(directory + "/m-00002-of-00002.gguf"));
    EXPECT_THAT(ReadWhole(*source, StateKey::Model("t1")), IsOkAndHolds(std::string("1234")));
    EXPECT_THAT(ReadWhole(*source, StateKey::Model("last")), IsOkAndHolds(std::string("abcdefgh")));
  }
}

TEST(GgufSourceTest, NamesOfPartsAreRecognised) {
  const std::optional<GgufPartName> name = ParseGgufPartName("a-00002-of-00013.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->stem, "a");
  EXPECT_EQ(name->number, 2);
  EXPECT_EQ(name->count, 13);
  for (const char* other : {"a.gguf", "-00002-of-00013.gguf", "a-0002-of-00013.gguf", "a-00002-of-00013.safetensors",
                            "a-0000x-of-00013.gguf", "a_00002-of-00013.gguf"}) {
    EXPECT_FALSE(ParseGgufPartName(other).has_value()) << other;
  }
}

TEST(GgufSourceTest, ADirectoryOfSeveralModelsIsNotOne) {
  const std::string directory = CopyOfSplit();
  const auto recognises = [&] {
    return GgufDriver().Recognises({.path = directory, .is_directory = true, .head = ""});
  };
  EXPECT_THAT(recognises(), IsOkAndHolds(true));
  fs::copy(TestData("big_endian/model.gguf"), directory + "/other.gguf");
  EXPECT_THAT(recognises(), IsOkAndHolds(false));
  EXPECT_OK(OpenGgufSource(directory + Part(2)).status());
}

TEST(GgufSourceTest, TypesThatAreNotReadAreNamedAndLeftOutOnlyWhenAskedFor) {
  const GgufBytes bytes = {.tensors = {{"raw", {256}, 15, std::string(292, 'x')}, {"plain", {1}, 0, "1234"}}};
  EXPECT_THAT(Open(bytes), StatusIs(StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr(R"("raw" (Q8_K, a type that this release does not read))"),
                                          HasSubstr("TensorSourceOptions::skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, Open(bytes, {.skip_links = true}));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"raw\" (Q8_K")));
  EXPECT_EQ(source->contents().entries().size(), 1);
  const GgufBytes nothing = {.tensors = {bytes.tensors[0]}};
  EXPECT_THAT(Open(nothing, {.skip_links = true}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("there is nothing else in it")));
}

TEST(GgufSourceTest, QuantizedTypesAreCountedInANote) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(TestData("split")));
  EXPECT_THAT(source->layout().notes, ElementsAre("2 tensors are quantized (1 of Q4_0, 1 of Q8_0) and read as float32",
                                                  HasSubstr("rows of attn_q and attn_k are in llama.cpp's order")));
}

TEST(GgufSourceTest, KeptBlocksAreTheirBytesWithTheirTypesInTheMetadata) {
  const std::string raw(2 * 292, 'x');
  const GgufBytes bytes = {.tensors = {{"raw", {512, 1}, 15, raw}, {"plain", {1}, 0, "1234"}}};
  ASSERT_OK_AND_ASSIGN(const auto source, Open(bytes, {.keep_quantized = true}));
  const ShardedTensor& tensor = *source->contents().FindTensor(StateKey::Model("raw"));
  EXPECT_EQ(tensor.dtype, DType::kUInt8);
  EXPECT_EQ(tensor.shape, Shape({1, 584}));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("raw")), IsOkAndHolds(raw));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("plain")), IsOkAndHolds(std::string("1234")));
  EXPECT_EQ(source->metadata().at("ggml_types"), R"({"raw":"Q8_K"})");
  EXPECT_THAT(source->layout().notes, ElementsAre("1 tensor is quantized (1 of Q8_K) and carried as blocks"));
  EXPECT_OK(source->Places(StateKey::Model("raw")).status());
}

TEST(GgufSourceTest, KeysAreMetadataButForThoseOfASplit) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(TestData("split")));
  const auto& metadata = source->metadata();
  EXPECT_EQ(metadata.count("split.count"), 0);
  EXPECT_THAT(metadata, testing::IsSupersetOf({
                            Pair(std::string("llama.rope.freq_base"), std::string("10000")),
                            Pair(std::string("llama.attention.layer_norm_rms_epsilon"), std::string("1e-05")),
                            Pair(std::string("x.u64"), std::string("9223372036854775809")),
                            Pair(std::string("x.f32"), std::string("0.1")),
                            Pair(std::string("x.false"), std::string("false")),
                            Pair(std::string("x.text"), std::string("gr\u00fc\u00dfe \u2713 \"quoted\"")),
                            Pair(std::string("x.ints"), std::string("[1,-2,3]")),
                            Pair(std::string("x.strings"), std::string("[\"a\",\"\",\"\u00e9\"]")),
                            Pair(std::string("x.bools"), std::string("[true,false,true]")),
                        }));
}

TEST(GgufSourceTest, AValueThatIsNotKeptIsNamed) {
  ASSERT_OK_AND_ASSIGN(const auto source,
                       Open({.keys = {GgufString("k", "\xFF")}, .tensors = {{"t", {1}, 0, "1234"}}}));
  EXPECT_THAT(source->left_out(), ElementsAre("the value of key \"k\", which is not UTF-8"));
  EXPECT_THAT(source->metadata(), IsEmpty());
}

TEST(GgufSourceTest, BlocksOfABigEndianFileAreRefused) {
  std::string bytes = ReadFile(TestData("big_endian/model.gguf"));
  const size_t at = bytes.rfind(std::string("\0\0\0\1\0\0\0\0\0\0\0\x40", 12));  // type F16 and offset 64 of "b"
  ASSERT_NE(at, bytes.npos);
  bytes[at + 3] = 30;
  EXPECT_THAT(OpenGgufFile(std::make_unique<ByteFile>(bytes), {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"b\" (BF16, in a big-endian file")));
}

TEST(GgufSourceTest, AnyIntervalOfBlocksIsReadToAnyAddress) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(TestData("random_blocks/model.gguf")));
  for (const char* name : {"r.q4_k", "r.nvfp4", "r.q8_0"}) {
    const StateKey key = StateKey::Model(name);
    ASSERT_OK_AND_ASSIGN(const std::string whole, ReadWhole(*source, key));
    for (const Interval& part : {Interval{0, 1}, Interval{255, 257}, Interval{31, 900}, Interval{64, 1280}}) {
      std::string bytes(part.size() * sizeof(float) + 1, 'x');
      ASSERT_OK(source->Read(key, part, bytes.data() + 1));
      EXPECT_EQ(bytes.substr(1), whole.substr(part.begin * sizeof(float), part.size() * sizeof(float))) << name;
    }
  }
}

TEST(GgufSourceTest, PiecesAreCutBetweenBlocks) {
  constexpr int64_t kNumel = 5 << 19;
  ASSERT_OK_AND_ASSIGN(const auto source, Open({.tensors = {{"t", {kNumel}, 8, std::string(kNumel / 32 * 34, '\1')}}}));
  EXPECT_THAT(source->Pieces(StateKey::Model("t"), {5, kNumel - 1}),
              ElementsAre(Interval{5, 1 << 20}, Interval{1 << 20, 2 << 20}, Interval{2 << 20, kNumel - 1}));
}

TEST(GgufSourceTest, ADescriptionHasTheFilesOfQuantizedTensorsToo) {
  ASSERT_OK_AND_ASSIGN(const SourceDescription description,
                       GgufDriver().Describe(TestData("random_blocks/model.gguf"), {}));
  ASSERT_EQ(description.files.size(), 1);
  EXPECT_EQ(description.files[0].name, "model.gguf");
  EXPECT_EQ(description.files[0].nbytes, 14016);
}

}  // namespace
}  // namespace fsdp
