// SPDX-License-Identifier: Apache-2.0
//
// Particulars of ONNX: the wire format, external data, graphs in graphs. checkpoint/conformance reads the files of
// testdata/, which the onnx package wrote, with the SHA-256 of each tensor as it reads them.
#include "fsdp/checkpoint/foreign/onnx/onnx_source.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_driver.h"
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
using testing::Pair;

std::string TestData(const std::string& name) { return "checkpoint/foreign/onnx/testdata/" + name; }

absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& bytes, const TensorSourceOptions& options = {}) {
  return OpenOnnxFile(std::make_unique<ByteFile>(bytes), NewTestDirectory(), options);
}

// The wire format.
std::string Varint(uint64_t number) {
  std::string bytes;
  for (; number > 127; number >>= 7) bytes += static_cast<char>((number & 127) | 128);
  return bytes + static_cast<char>(number);
}
std::string Number(int field, uint64_t number) { return Varint(field << 3) + Varint(number); }
std::string Bytes(int field, const std::string& bytes) {
  return absl::StrCat(Varint(field << 3 | 2), Varint(bytes.size()), bytes);
}

std::string Dims(const std::vector<int64_t>& dims) {
  std::string bytes;
  for (const int64_t dim : dims) bytes += Number(1, static_cast<uint64_t>(dim));
  return bytes;
}
std::string Tensor(const std::string& name, int type, const std::vector<int64_t>& dims, const std::string& data) {
  return absl::StrCat(Dims(dims), Number(2, type), Bytes(8, name), data);
}
std::string Raw(const std::string& bytes) { return Bytes(9, bytes); }
std::string External(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string bytes;
  for (const auto& [key, value] : entries) bytes += Bytes(13, Bytes(1, key) + Bytes(2, value));
  return bytes + Number(14, 1);
}
std::string Model(const std::vector<std::string>& initializers) {
  std::string graph = Bytes(2, "g");
  for (const std::string& initializer : initializers) graph += Bytes(5, initializer);
  return Number(1, 8) + Bytes(7, graph) + Bytes(8, "");
}

constexpr int kFloat = 1;
constexpr int kInt8 = 3;
constexpr int kInt32 = 6;

TEST(OnnxSourceTest, ALayoutSaysWhatIsReadAndWhatIsNot) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenOnnxSource(TestData("nested.onnx"), {.skip_links = true}));
  EXPECT_EQ(source->layout().text, "model from the initializers of graph \"main_graph\", by make_testdata 1.0");
  EXPECT_THAT(source->layout().notes, ElementsAre("the graph is left out: 3 nodes, 1 constant"));
  ASSERT_OK_AND_ASSIGN(const auto raw, OpenOnnxSource(TestData("raw.onnx")));
  EXPECT_THAT(raw->metadata(), ElementsAre(Pair(std::string("note"), std::string("gr\u00fc\u00df"))));
  EXPECT_THAT(raw->layout().notes, Contains("2 tensors are INT4 and read as int8"));
}

TEST(OnnxSourceTest, TextsAndSparseTensorsAreLeftOutOnlyWhenAskedFor) {
  EXPECT_THAT(OpenOnnxSource(TestData("nested.onnx")),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"texts\" (texts), \"sparse\" (sparse)"), HasSubstr("skip_links"))));
  const std::string odd = Tensor("f4", 23, {2, 3}, Raw("abc"));
  EXPECT_THAT(Open(Model({odd})), StatusIs(StatusCode::kInvalidArgument,
                                           HasSubstr("FLOAT4E2M1 of shape [2, 3], whose rows are no whole bytes")));
}

TEST(OnnxSourceTest, PackedAndSeparateNumbersAreEqual) {
  const std::string packed = Bytes(5, Varint(1) + Varint(uint64_t(-2)) + Varint(300));
  const std::string separate = Number(5, 1) + Number(5, uint64_t(-2)) + Number(5, 300);
  const std::string mixed = Bytes(5, Varint(1)) + Number(5, uint64_t(-2)) + Bytes(5, "") + Bytes(5, Varint(300));
  const std::string elements("\1\0\0\0\xFE\xFF\xFF\xFF\x2C\1\0\0", 12);
  for (const std::string& data : {packed, separate, mixed}) {
    ASSERT_OK_AND_ASSIGN(const auto source, Open(Model({Tensor("w", kInt32, {3}, data)})));
    EXPECT_THAT(ReadWhole(*source, StateKey::Model("w")), IsOkAndHolds(elements));
  }
  // float_data without "packed": a tag and four bytes for each.
  const std::string floats = std::string("\x25") + "abcd" + "\x25" + "efgh";
  ASSERT_OK_AND_ASSIGN(const auto source, Open(Model({Tensor("w", kFloat, {2}, floats)})));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("w")), IsOkAndHolds(std::string("abcdefgh")));
}

TEST(OnnxSourceTest, ContradictionsAreDamageByName) {
  const std::string good = Tensor("w", kInt8, {2}, Raw("ab"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Model({Tensor("w", kInt8, {3}, Raw("ab"))}),
       "tensor \"w\": it has 2 bytes of elements, which is not the size of"},
      {Model({Tensor("w", kInt8, {int64_t{1} << 40, 1 << 20}, Raw("ab"))}), "not the size of"},
      {Model({Tensor("w", kInt8, {-1}, Raw("ab"))}), "tensor \"w\""},
      {Model({Tensor("w", kInt8, {2}, Raw("ab") + Raw("ab"))}), "it has raw_data twice"},
      {Model({Tensor("w", kInt8, {2}, Raw("ab") + Number(5, 1))}), "it has elements in raw_data and in int32_data"},
      {Model({Tensor("w", kInt8, {2}, Bytes(7, "ab"))}),
       "its elements are in int64_data, expected raw_data or int32_data"},
      {Model({Tensor("w", kInt8, {1}, Bytes(5, "\x80"))}), "end in a number"},
      {Model({Tensor("w", kInt8, {1}, Bytes(5, std::string(10, '\xFF') + "\1"))}), "more than 64 bits"},
      {Model({good, good}), "the initializer \"w\" is there twice"},
      {Model({Tensor("", kInt8, {2}, Raw("ab"))}), "has no name"},
      {Model({good}) + Model({good}), "it has two graphs"},
      {Number(1, 8) + "\x3a\x7f", "it is truncated or damaged"},
      {Number(1, 8) + Bytes(7, "\x2a\x7f" + std::string(10, 'x')) + std::string(200, 'x'), "behind its message"},
      {Number(1, 8) + "\x3b", "has wire type 3"},
      {Model({Tensor("w", kInt8, {2}, Number(14, 1))}), "its external data has no location"},
      {Model({Tensor("w", kInt8, {2}, Raw("ab") + External({{"location", "x"}}))}),
       "its elements are external, and in"},
      {Model({Tensor("w", kInt8, {2}, External({{"location", "x"}, {"offset", "-1"}}))}),
       "offset of its external data"},
  };
  for (const auto& [bytes, message] : cases) {
    EXPECT_THAT(Open(bytes), StatusIs(StatusCode::kDataLoss, HasSubstr(message))) << message;
  }
  EXPECT_THAT(Open(Number(1, 8)), StatusIs(StatusCode::kInvalidArgument, HasSubstr("it has no graph")));
  EXPECT_THAT(Open(Number(1, 8) + Bytes(7, Bytes(5, good))),
              StatusIs(StatusCode::kDataLoss, HasSubstr("it has no opset_import")));
  EXPECT_THAT(Open(Model({Tensor("w", 99, {2}, Raw("ab"))})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("its data_type is 99")));
  EXPECT_THAT(Open(Model({})), StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no initializers")));
}

TEST(OnnxSourceTest, ANumberThatDoesNotFitItsTypeIsDamage) {
  ASSERT_OK_AND_ASSIGN(const auto source, Open(Model({Tensor("w", kInt8, {2}, Number(5, 1) + Number(5, 256))})));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("w")),
              StatusIs(StatusCode::kDataLoss, HasSubstr("element 1 is 256, which does not fit in 1 bytes")));
}

TEST(OnnxSourceTest, TrainingInfoAndFunctionsHaveGraphsToo) {
  const std::string graph = Bytes(5, Tensor("w", kInt8, {2}, Raw("ab")));
  const std::string node = Bytes(3, "loop") + Bytes(5, Bytes(1, "body") + Bytes(6, graph));
  ASSERT_OK_AND_ASSIGN(const auto source, Open(Model({}) + Bytes(20, Bytes(1, graph) + Bytes(2, graph)) +
                                               Bytes(25, Bytes(1, "f") + Bytes(7, node))));
  for (const char* name : {"training_info.0.initialization.w", "training_info.0.algorithm.w", "f.loop.body.w"}) {
    EXPECT_THAT(ReadWhole(*source, StateKey::Model(name)), IsOkAndHolds(std::string("ab"))) << name;
  }
}

TEST(OnnxSourceTest, GraphsInGraphsHaveALimit) {
  std::string graph = Bytes(5, Tensor("w", kInt8, {2}, Raw("ab")));
  for (int i = 0; i < 40; ++i) graph = Bytes(1, Bytes(5, Bytes(6, graph)));
  EXPECT_THAT(Open(Number(1, 8) + Bytes(7, graph)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("graphs in more than 32 graphs")));
}

TEST(OnnxSourceTest, ManySmallTensorsAreRefusedBeforeTheyTakeMuchMemory) {
  std::string graph;
  for (int i = 0; i < 200'000; ++i)
    absl::StrAppend(&graph, Bytes(5, Number(2, kInt8) + Bytes(8, absl::StrCat(i)) + Dims({0})));
  EXPECT_THAT(Open(Number(1, 8) + Bytes(7, graph)), StatusIs(StatusCode::kDataLoss, HasSubstr("bytes of memory")));
}

class OnnxExternalDataTest : public testing::Test {
 protected:
  // A model with two elements of external data.
  absl::StatusOr<std::unique_ptr<TensorSource>> OpenWith(
      const std::vector<std::pair<std::string, std::string>>& entries) const {
    WriteAll(directory_ + "/m/model.onnx", Model({Tensor("w", kInt8, {2}, External(entries))}));
    return OpenOnnxSource(directory_ + "/m/model.onnx");
  }

  void SetUp() override {
    fs::create_directories(directory_ + "/m/below");
    WriteAll(directory_ + "/secret", "xy");
    WriteAll(directory_ + "/m/data", "abcd");
    WriteAll(directory_ + "/m/below/data", "ef");
  }

  const std::string directory_ = NewTestDirectory();
};

TEST_F(OnnxExternalDataTest, FilesInTheDirectoryAreRead) {
  const StateKey key = StateKey::Model("w");
  ASSERT_OK_AND_ASSIGN(const auto part, OpenWith({{"location", "data"}, {"offset", "1"}, {"length", "2"}}));
  EXPECT_THAT(ReadWhole(*part, key), IsOkAndHolds(std::string("bc")));
  EXPECT_THAT(part->files(), ElementsAre(HasSubstr("/m/model.onnx"), HasSubstr("/m/data")));
  ASSERT_OK_AND_ASSIGN(const auto end, OpenWith({{"location", "data"}, {"offset", "2"}}));
  EXPECT_THAT(ReadWhole(*end, key), IsOkAndHolds(std::string("cd")));
  ASSERT_OK_AND_ASSIGN(const auto below, OpenWith({{"location", "./below/data"}}));
  EXPECT_THAT(ReadWhole(*below, key), IsOkAndHolds(std::string("ef")));
  fs::create_symlink("data", directory_ + "/m/link");
  EXPECT_OK(OpenWith({{"location", "link"}, {"length", "2"}}).status());
}

TEST_F(OnnxExternalDataTest, FilesOutsideOfTheDirectoryAreRefused) {
  fs::create_symlink("../secret", directory_ + "/m/link");
  fs::create_symlink("..", directory_ + "/m/up");
  for (const std::string& location :
       {std::string("../secret"), directory_ + "/secret", std::string("below/../../secret"), std::string("link"),
        std::string("up/secret"), std::string("below/.."), std::string("data\0", 5)}) {
    EXPECT_THAT(
        OpenWith({{"location", location}}),
        StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("tensor \"w\": the location "), HasSubstr("refused"))))
        << location;
  }
}

// A snapshot of the hub's cache is links to blobs.
TEST_F(OnnxExternalDataTest, LinksOfTheHubsCacheAreFollowed) {
  const std::string cache = directory_ + "/models--a--b";
  fs::create_directories(cache + "/blobs");
  fs::create_directories(cache + "/snapshots/1234/onnx");
  WriteAll(cache + "/blobs/model", Model({Tensor("w", kInt8, {2}, External({{"location", "model.onnx_data"}}))}));
  WriteAll(cache + "/blobs/data", "ab");
  fs::create_symlink("../../../blobs/model", cache + "/snapshots/1234/onnx/model.onnx");
  fs::create_symlink("../../../blobs/data", cache + "/snapshots/1234/onnx/model.onnx_data");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenOnnxSource(cache + "/snapshots/1234/onnx/model.onnx"));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("w")), IsOkAndHolds(std::string("ab")));
}

TEST_F(OnnxExternalDataTest, MissingAndShortFilesAreNamed) {
  EXPECT_THAT(OpenWith({{"location", "none"}}),
              StatusIs(StatusCode::kNotFound, AllOf(HasSubstr("tensor \"w\": its elements are in"),
                                                    HasSubstr("/m/none, which does not exist"))));
  const std::vector<std::vector<std::pair<std::string, std::string>>> cases = {
      {{"location", "data"}},
      {{"location", "data"}, {"offset", "3"}, {"length", "2"}},
      {{"location", "data"}, {"offset", "9"}},
      {{"location", "data"}, {"offset", "0"}, {"length", "3"}},
      {{"location", "data"}, {"offset", "9223372036854775807"}, {"length", "2"}}};
  for (const auto& entries : cases) {
    EXPECT_THAT(OpenWith(entries),
                StatusIs(StatusCode::kDataLoss,
                         AllOf(HasSubstr("/m/data, which has 4, but [2] INT8"), HasSubstr("the file is truncated"))));
  }
}

TEST(OnnxDriverTest, AModelIsRecognisedByItsContentUnderAnyName) {
  const auto recognises = [](const std::string& path, const std::string& head) {
    return *OnnxDriver().Recognises({.path = path, .is_directory = false, .head = head});
  };
  EXPECT_TRUE(recognises("model", ReadFile(TestData("raw.onnx")).substr(0, 200)));
  EXPECT_TRUE(recognises("model.onnx", Number(1, 8) + Bytes(6, std::string(5000, 'x'))));
  EXPECT_FALSE(recognises("model", Number(1, 8) + Bytes(6, std::string(5000, 'x'))));
  EXPECT_FALSE(recognises("model.onnx", ""));
  EXPECT_FALSE(recognises("model.onnx", "version https://git-lfs.github.com/spec/v1\n"));
  // TensorFlow's SavedModel: a version, and messages of field 2.
  EXPECT_FALSE(recognises("saved_model.pb", Number(1, 1) + Bytes(2, Bytes(1, "\xFF\x08") + std::string(99, '\1'))));
  EXPECT_FALSE(recognises("tensor.pb", Tensor("w", kInt8, {2}, Raw("ab"))));
}

}  // namespace
}  // namespace fsdp
