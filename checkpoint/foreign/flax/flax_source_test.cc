// SPDX-License-Identifier: Apache-2.0
//
// Particulars of Flax's files: leaves that are not arrays, chunks, parts, recognition. checkpoint/conformance reads the
// files of testdata/, which flax wrote, with the SHA-256 of each array as flax restores it.
#include "fsdp/checkpoint/foreign/flax/flax_source.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/flax/flax_driver.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::string TestData(const std::string& name) { return "checkpoint/foreign/flax/testdata/" + name; }

absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& bytes, const TensorSourceOptions& options = {}) {
  return OpenFlaxFile(std::make_unique<ByteFile>(bytes), options);
}

// Values of MessagePack, all short.
std::string Code(int code) { return std::string(1, static_cast<char>(code)); }
std::string Text(const std::string& text) { return Code(0xa0 | static_cast<int>(text.size())) + text; }
std::string Map(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string bytes = Code(0x80 | static_cast<int>(members.size()));
  for (const auto& [key, value] : members) absl::StrAppend(&bytes, Text(key), value);
  return bytes;
}
std::string Extension(int type, const std::string& bytes) {
  return Code(0xc7) + Code(static_cast<int>(bytes.size())) + Code(type) + bytes;
}
std::string ArrayMessage(const std::vector<int>& shape, const std::string& dtype, const std::string& elements) {
  std::string bytes = Code(0x93) + Code(0x90 | static_cast<int>(shape.size()));
  for (const int dim : shape) bytes += Code(dim);
  return absl::StrCat(bytes, Text(dtype), Code(0xc4), Code(static_cast<int>(elements.size())), elements);
}
std::string Array(const std::vector<int>& shape, const std::string& dtype, const std::string& elements) {
  return Extension(1, ArrayMessage(shape, dtype, elements));
}
const std::string kArray = Array({2}, "int8", "ab");

std::string TextOf(const TensorSource& source, const std::string& name) {
  const std::string* const text = source.contents().FindText(StateKey::Extra(name));
  return text == nullptr ? "no text" : *text;
}

TEST(FlaxSourceTest, LeavesOfPythonAreTextsOfJson) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenFlaxSource(TestData("dtypes.msgpack"), {.skip_links = true}));
  const std::string place = "model/w.python.";
  EXPECT_EQ(TextOf(*source, place + "an_int"), "-3");
  EXPECT_EQ(TextOf(*source, place + "a_float"), "0.1");
  EXPECT_EQ(TextOf(*source, place + "nan"), R"({"__python__":"float","value":"nan"})");
  EXPECT_EQ(TextOf(*source, place + "yes"), "true");
  EXPECT_EQ(TextOf(*source, place + "text"), "\"gr\u00fc\u00df\"");
  EXPECT_EQ(TextOf(*source, place + "nothing"), "null");
  EXPECT_EQ(TextOf(*source, place + "complex"), R"({"__python__":"complex","items":[1.0,-2.0]})");
  EXPECT_THAT(source->layout().notes, Contains("1 branch is empty: w.empty"));
}

TEST(FlaxSourceTest, TheBranchesOfATrainStateAreModelOptimizerAndExtraValues) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenFlaxSource(TestData("train_state.msgpack")));
  EXPECT_EQ(source->layout().text, "model from \"params\", optimizer from \"opt_state\"");
  EXPECT_THAT(source->layout().notes, Contains("step 3 is \"step\""));
  EXPECT_EQ(TextOf(*source, "step"), "3");
}

TEST(FlaxSourceTest, DtypesWithoutATensorAreLeftOutOnlyWhenAskedFor) {
  const std::string bytes = Map({{"w", kArray}, {"q", Array({2}, "float4_e2m1fn", "ab")}});
  EXPECT_THAT(Open(bytes),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("would be left out: \"q\" (float4_e2m1fn)"), HasSubstr("skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, Open(bytes, {.skip_links = true}));
  EXPECT_THAT(source->left_out(), ElementsAre("\"q\" (float4_e2m1fn)"));
}

TEST(FlaxSourceTest, IntegersOfFewerBitsBecomeBytes) {
  ASSERT_OK_AND_ASSIGN(const auto source,
                       Open(Map({{"q", Array({2}, "int4", "\x07\x0e")}, {"z", Array({2}, "uint2", "\x03\x04")}})));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("q"))->dtype, DType::kInt8);
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("q")), IsOkAndHolds("\x07\xfe"));
  EXPECT_THAT(source->Places(StateKey::Model("q")), StatusIs(StatusCode::kUnimplemented, HasSubstr("another dtype")));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("z")),
              StatusIs(StatusCode::kDataLoss, HasSubstr("element 1 is the byte 4, which is no value of uint2")));
}

TEST(FlaxSourceTest, AnArrayInChunksHasNoPlaceAndAWholeOneHas) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenFlaxSource(TestData("dtypes.msgpack"), {.skip_links = true}));
  EXPECT_THAT(source->Places(StateKey::Model("chunked.matrix")),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("it is in 5 chunks")));
  ASSERT_OK_AND_ASSIGN(const auto places, source->Places(StateKey::Model("w.int8")));
  ASSERT_OK_AND_ASSIGN(const std::string elements, ReadWhole(*source, StateKey::Model("w.int8")));
  EXPECT_EQ(ReadFile(TestData("dtypes.msgpack")).substr(places[0].offset, elements.size()), elements);
}

TEST(FlaxSourceTest, ListsAndNumbersAreKeysToo) {
  const std::string list = Code(0x92) + kArray + Map({{"b", kArray}});
  ASSERT_OK_AND_ASSIGN(const auto source, Open(Code(0x82) + Text("a") + list + Code(5) + kArray));
  EXPECT_TRUE(source->contents().contains(StateKey::Model("a.0")));
  EXPECT_TRUE(source->contents().contains(StateKey::Model("a.1.b")));
  EXPECT_TRUE(source->contents().contains(StateKey::Model("5")));
}

// A fault, and a part of the message.
TEST(FlaxSourceTest, ContradictionsAreDamageByName) {
  const std::string one = Extension(1, ArrayMessage({3}, "int8", "abc") + "x");
  const auto chunked = [](const std::string& dim, const std::string& first, const std::string& second) {
    return Map({{"c", Map({{"__msgpack_chunked_array__", Code(0xc3)},
                           {"shape", Map({{"0", dim}})},
                           {"chunks", Map({{"0", first}, {"1", second}})}})}});
  };
  ASSERT_OK(Open(chunked(Code(4), kArray, kArray)).status());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Map({{"w", Array({3}, "int8", "ab")}}), "\"w\": it has 2 bytes of elements, which is not the size of [3] int8"},
      {Map({{"w", Array({2}, "float32", "ab")}}), "not the size of [2] float32"},
      {Map({{"w", one}}), "but the whole states byte"},
      {Map({{"w", kArray}, {"w", kArray}}), "\"w\" is there twice"},
      {Map({{"a", Map({{"b", kArray}})}, {"a.b", kArray}}), "two values have the name \"model/a.b\""},
      {Map({{"w", kArray}}) + "x", "1 bytes follow the tree"},
      {chunked(Code(5), kArray, kArray), "its chunks have 4 elements, its shape is [5]"},
      {chunked(Code(4), kArray, Array({2}, "uint8", "ab")), "chunk 1 has dtype uint8, the first int8"},
      {chunked(Code(4), kArray, Array({1, 2}, "int8", "ab")), "chunk 1 has shape [1, 2]"},
      {chunked(Code(4), kArray, Text("x")), "a chunk before byte"},
      {Map({{"w", Code(0xc1)}}), "is 193, which no value begins with"},
      {Map({{"w", Code(0xc6) + "\x7f\xff\xff\xff"}}), "it is truncated or damaged"},
      {Map({{"w", Code(0xdf) + "\x7f\xff\xff\xff"}}), "it is truncated or damaged"},
      {Map({{"\xff", kArray}}), "is not UTF-8"},
      {Map({{"w", Extension(2, Code(0x92) + Code(1) + Code(2))}}), "the real part before byte"},
      {kArray, "expected a map of names"},
  };
  for (const auto& [bytes, message] : cases) {
    EXPECT_THAT(Open(bytes), StatusIs(StatusCode::kDataLoss, HasSubstr(message))) << message;
  }
}

TEST(FlaxSourceTest, ADeepTreeIsRefused) {
  std::string bytes = kArray;
  for (int i = 0; i < 65; ++i) bytes = Map({{"a", bytes}});
  EXPECT_THAT(Open(bytes), StatusIs(StatusCode::kDataLoss, HasSubstr("more than 64 levels")));
}

// Each pair takes two bytes of the file and hundreds of memory.
TEST(FlaxSourceTest, ManyShortValuesAreRefusedBeforeTheyTakeMuchMemory) {
  const std::string key = Code(0xda) + "\xff\xf0" + std::string(0xfff0, 'k');
  std::string bytes = Code(0x81) + key + Code(0xdd) + Code(0) + "\x10" + Code(0) + Code(0);
  bytes += std::string(1 << 20, '\1');
  EXPECT_THAT(Open(bytes), StatusIs(StatusCode::kDataLoss, HasSubstr("bytes of memory")));
}

TEST(FlaxSourceTest, MessagePackOfOtherProgramsIsNamed) {
  EXPECT_THAT(Open(Map({{"a", Code(1)}})), StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no arrays of Flax")));
}

TEST(FlaxSourceTest, PartsMustBeWhatTheIndexSays) {
  const std::string directory = NewTestDirectory() + "/m";
  fs::copy(TestData("parts"), directory);
  const std::string first = directory + "/flax_model-00001-of-00002.msgpack";
  const std::string second = directory + "/flax_model-00002-of-00002.msgpack";
  const std::string bytes = ReadFile(first);
  EXPECT_OK(OpenFlaxSource(directory).status());
  EXPECT_THAT(OpenFlaxSource(first),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is one of several files of a model")));
  WriteAll(first, ReadFile(second));
  EXPECT_THAT(OpenFlaxSource(directory),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr("is in flax_model-00001-of-00002.msgpack, where the index does not have it"))));
  WriteAll(first, Map({{"other", kArray}}));
  EXPECT_THAT(OpenFlaxSource(directory), StatusIs(StatusCode::kDataLoss, HasSubstr("\"other\"")));
  fs::remove(first);
  EXPECT_THAT(OpenFlaxSource(directory), StatusIs(StatusCode::kNotFound, HasSubstr("flax_model-00001-of-00002")));
}

TEST(FlaxDriverTest, AFileIsRecognisedByItsContentUnderAnyName) {
  const auto recognises = [](const std::string& path, const std::string& head) {
    return *FlaxDriver().Recognises({.path = path, .is_directory = false, .head = head});
  };
  const std::string head = ReadFile(TestData("train_state.msgpack")).substr(0, 200);
  EXPECT_TRUE(recognises("checkpoint_3", head));
  EXPECT_TRUE(recognises("model.msgpack", Map({{"a", Code(1)}})));
  EXPECT_FALSE(recognises("a", Map({{"a", Code(1)}})));
  EXPECT_FALSE(recognises("a.msgpack", "version https://git-lfs.github.com/spec/v1\n"));
  EXPECT_FALSE(recognises("a.msgpack", ""));
  EXPECT_FALSE(recognises("a.msgpack", Map({})));
  EXPECT_FALSE(recognises("a.pt", "\x80\x02}q" + head));
  // The length of a header of safetensors.
  EXPECT_FALSE(recognises("a.msgpack", std::string("\x81\xa1\0\0\0\0\0\0{", 9)));
}

}  // namespace
}  // namespace fsdp
