// SPDX-License-Identifier: Apache-2.0
//
// Files compared byte for byte with files of gguf-py (testdata/make_writer.py), and each refusal.
// checkpoint/conformance tests the rules for every writer.
#include "fsdp/checkpoint/foreign/gguf/gguf_writer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_driver.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_testutil.h"
#include "fsdp/checkpoint/foreign/gguf/quantize.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string TestData(const std::string& name) { return "checkpoint/foreign/gguf/testdata/" + name; }

// The written file, and the notes about it.
struct Written {
  std::string path;
  std::string bytes;
  std::vector<std::string> notes;
};

absl::StatusOr<Written> Write(const StateDict& state, const PayloadReader& read, const GgufTarget& target,
                              std::map<std::string, std::string> metadata = {}, int threads = 2) {
  Written written = {NewTestDirectory() + "/out.gguf", {}, {}};
  FormatContents contents = {.state = state, .metadata = std::move(metadata)};
  const std::unique_ptr<FormatWriter> writer = WriterFor(target);
  FSDP_ASSIGN_OR_RETURN(written.notes, writer->Fit(contents));
  FSDP_RETURN_IF_ERROR(writer->Write(written.path, contents, read, {.io_threads = threads}));
  written.bytes = ReadFile(written.path);
  return written;
}

absl::StatusOr<Written> WriteSource(const std::string& path, const GgufTarget& target) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, OpenGgufSource(path));
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    return source->Read(key, interval, out);
  };
  return Write(source->contents(), read, target, source->metadata());
}

// One tensor of the model.
StateDict One(const std::string& name, DType dtype, const Shape& shape) {
  StateDict state;
  ShardedTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  state.Set(StateKey::Model(name), std::move(tensor));
  return state;
}

absl::Status ReadOnes(const StateKey&, const Interval& interval, void* out) {
  for (int64_t i = 0; i < interval.size(); ++i) static_cast<float*>(out)[i] = 1;
  return absl::OkStatus();
}

TEST(GgufWriterTest, AFileWithATemplateIsThatOfGgufPy) {
  ASSERT_OK_AND_ASSIGN(const Written written,
                       WriteSource(TestData("writer/source.gguf"), {.template_path = TestData("writer/model.gguf")}));
  EXPECT_TRUE(written.bytes == ReadFile(TestData("writer/model.gguf")));
  EXPECT_THAT(written.notes, ElementsAre("2 tensors are written quantized; all elements take 5856 bytes"));
}

TEST(GgufWriterTest, ATypeReplacesAllTypesOfTheTemplateButF32) {
  ASSERT_OK_AND_ASSIGN(const Written written,
                       WriteSource(TestData("writer/source.gguf"), {TestData("writer/model.gguf"), "q8_0"}));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(written.path));
  EXPECT_THAT(source->layout().notes, testing::Contains("4 tensors are quantized (4 of Q8_0) and read as float32"));
  EXPECT_EQ(source->metadata().at("general.file_type"), "7");
  EXPECT_EQ(source->metadata().at("general.quantization_version"), "2");
  EXPECT_EQ(source->metadata().at("tokenizer.ggml.tokens"), "[\"<s>\",\"a\",\"b\u00e9\"]");
}

TEST(GgufWriterTest, KeysOfASplitAreNotThoseOfOneFile) {
  ASSERT_OK_AND_ASSIGN(const Written written,
                       WriteSource(TestData("split"), {.template_path = TestData("split"), .type = "F16"}));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(written.path));
  EXPECT_EQ(source->files().size(), 1);
  EXPECT_EQ(source->contents().entries().size(), 5);
  EXPECT_EQ(source->metadata().at("x.ints"), "[1,-2,3]");
  EXPECT_EQ(source->metadata().at("general.file_type"), "1");
}

TEST(GgufWriterTest, WithoutATemplateNamesDtypesAndMetadataAreTheSources) {
  ASSERT_OK_AND_ASSIGN(const Written written, Write(One("a.b", DType::kFloat32, {2, 3}), ReadOnes, {}, {{"k", "v"}}));
  EXPECT_THAT(written.notes, ElementsAre(HasSubstr("without a template the file has no keys")));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(written.path));
  EXPECT_THAT(source->metadata(), ElementsAre(testing::Pair("k", "v")));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("a.b"))->shape, Shape({2, 3}));
}

TEST(GgufWriterTest, BlocksThatDoNotFitTheirTypeAreRefused) {
  const auto status_of = [](DType dtype, const Shape& shape, const std::string& types) {
    return Write(One("w", dtype, shape), ReadOnes, {}, {{"ggml_types", types}}).status();
  };
  EXPECT_THAT(status_of(DType::kUInt8, {2, 35}, R"({"w": "Q8_0"})"),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("tensor \"w\": [2, 35] uint8 are no blocks of \"Q8_0\""),
                                                    HasSubstr("ggml_types"))));
  EXPECT_THAT(status_of(DType::kFloat32, {2, 34}, R"({"w": "Q8_0"})"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(status_of(DType::kUInt8, {2, 34}, R"({"w": "F32"})"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(status_of(DType::kUInt8, {2, 34}, R"({"w": 8})"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(status_of(DType::kUInt8, {2, 34}, "no JSON"), StatusIs(StatusCode::kDataLoss));
}

TEST(GgufWriterTest, RowsThatAreNoMultipleOfABlockBecomeF16AndAreNamed) {
  StateDict state = One("odd", DType::kFloat32, {2, 48});
  state.Set(StateKey::Model("even"), ShardedTensor{DType::kFloat32, Shape({2, 64}), {}});
  state.Set(StateKey::Model("bias"), ShardedTensor{DType::kFloat32, Shape({64}), {}});
  ASSERT_OK_AND_ASSIGN(const Written written, Write(state, ReadOnes, {.type = "Q8_0"}));
  EXPECT_THAT(written.notes, testing::Contains("1 tensor is F16, because rows are no multiple of a block: odd"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenGgufSource(written.path));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("odd"))->dtype, DType::kFloat16);
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("bias"))->dtype, DType::kFloat32);
  EXPECT_THAT(source->layout().notes, ElementsAre("1 tensor is quantized (1 of Q8_0) and read as float32"));
}

TEST(GgufWriterTest, BlocksThatAFileCutsAreRightAndEachElementIsPulledOnce) {
  const StateDict state = One("large", DType::kFloat32, {1031, 4096});  // 4.5 MB, 1.1 blocks of the file
  std::vector<std::atomic<int>> pulled(1031 * 4096);
  const PayloadReader read = [&](const StateKey&, const Interval& interval, void* out) {
    for (int64_t i = interval.begin; i < interval.end; ++i) {
      ++pulled[i];
      static_cast<float*>(out)[i - interval.begin] = static_cast<float>(i % 127 - 63);
    }
    return absl::OkStatus();
  };
  for (const int threads : {1, 4}) {
    for (std::atomic<int>& count : pulled) count = 0;
    ASSERT_OK_AND_ASSIGN(const Written written, Write(state, read, {.type = "Q8_0"}, {}, threads));
    EXPECT_TRUE(std::all_of(pulled.begin(), pulled.end(), [](const auto& count) { return count == 1; }));
    std::vector<float> block(32);
    std::string expected(34, '\0');
    ASSERT_EQ(written.bytes.size() % 32, 0);
    const size_t begin = written.bytes.size() - AlignGguf(1031 * 4096 / 32 * 34, 32);
    for (int64_t i = 0; i < 1031 * 4096 / 32; ++i) {
      for (int k = 0; k < 32; ++k) block[k] = static_cast<float>((32 * i + k) % 127 - 63);
      QuantizeQ8_0(block.data(), 1, reinterpret_cast<std::byte*>(expected.data()));
      ASSERT_EQ(std::memcmp(written.bytes.data() + begin + 34 * i, expected.data(), 34), 0) << i;
    }
  }
}

TEST(GgufWriterTest, AnElementThatATypeCannotRepresentIsRefusedByPlace) {
  for (const float bad : {INFINITY, -INFINITY, NAN, 3e38f}) {
    for (const char* type : {"Q8_0", "MXFP4"}) {
      if (bad == 3e38f && std::string(type) == "MXFP4") continue;  // has the range of float32
      const PayloadReader read = [&](const StateKey&, const Interval& interval, void* out) {
        for (int64_t i = interval.begin; i < interval.end; ++i) {
          static_cast<float*>(out)[i - interval.begin] = i == 70 ? bad : 1;
        }
        return absl::OkStatus();
      };
      EXPECT_THAT(Write(One("w", DType::kFloat32, {4, 64}), read, {.type = type}),
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("tensor \"w\""), HasSubstr("an element from 64 to 96"), HasSubstr(type))))
          << bad;
    }
  }
}

TEST(GgufWriterTest, TheLeastScalesDoNotOverflow) {
  std::vector<float> block(32, 1e-40f);
  std::byte bytes[34];
  EXPECT_EQ(QuantizeQ8_0(block.data(), 1, bytes), 32);
  EXPECT_TRUE(std::all_of(std::begin(bytes), std::end(bytes), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(QuantizeMXFP4(block.data(), 1, bytes), 32);
  EXPECT_EQ(bytes[0], std::byte{0});
}

// A template of one matrix of that type.
std::string Template(uint32_t type, size_t nbytes) {
  const std::string path = NewTestDirectory() + "/template.gguf";
  WriteAll(path, GgufBytes{.keys = {}, .tensors = {{"w", {256, 2}, type, std::string(nbytes, '\0')}}}.ToString());
  return path;
}

TEST(GgufWriterTest, WhatDoesNotMatchTheTemplateIsNamed) {
  const std::string f32 = Template(0, 2048);
  const auto error = [&](const StateDict& state, const GgufTarget& target) {
    return std::string(Write(state, ReadOnes, target).status().message());
  };
  StateDict other = One("v", DType::kFloat32, {2, 256});
  EXPECT_THAT(error(other, {.template_path = f32}),
              AllOf(HasSubstr(f32), HasSubstr("1 of it the model lacks (w), 1 of the model it lacks (v)")));
  EXPECT_THAT(error(One("w", DType::kFloat32, {256, 2}), {.template_path = f32}),
              HasSubstr("tensor \"w\" has shape [2, 256] in it, and [256, 2] in the model"));
  EXPECT_THAT(error(One("w", DType::kInt32, {2, 256}), {.template_path = f32}), HasSubstr("int32 cannot become F32"));
  const StateDict right = One("w", DType::kFloat32, {2, 256});
  EXPECT_EQ(error(right, {.template_path = f32}), "");
  const std::string q4_k = Template(12, 288);
  EXPECT_THAT(error(right, {.template_path = q4_k}),
              HasSubstr("its type Q4_K is read, and not written: choose one of F32, F16, Q8_0, BF16, MXFP4"));
  EXPECT_EQ(error(right, {.template_path = q4_k, .type = "MXFP4"}), "");
  EXPECT_THAT(error(right, {.template_path = f32, .type = "F16"}), HasSubstr("its tensors are all F32"));
  EXPECT_EQ(error(right, {.template_path = f32, .type = "F32"}), "");
  EXPECT_THAT(error(right, {.template_path = TestData("big_endian/model.gguf")}), HasSubstr("is big-endian"));
  EXPECT_THAT(error(right, {.template_path = "missing.gguf"}), HasSubstr("missing.gguf"));
}

TEST(GgufWriterTest, WhatGgufDoesNotHaveIsRefused) {
  const auto error = [&](const StateDict& state, const GgufTarget& target) {
    return std::string(Write(state, ReadOnes, target).status().message());
  };
  EXPECT_THAT(error(One("w", DType::kBool, {2}), {}), HasSubstr("GGUF does not have bool"));
  EXPECT_THAT(error(One("w", DType::kFloat32, {1, 1, 1, 1, 1}), {}), HasSubstr("it has 5 dimensions"));
  EXPECT_THAT(error(One("w", DType::kFloat32, {2}), {.type = "Q4_K"}),
              HasSubstr("type to write: \"Q4_K\", expected F32, F16, Q8_0, BF16, MXFP4"));
  ASSERT_OK_AND_ASSIGN(const Written written, Write(One(std::string(64, 'n'), DType::kFloat32, {2}), ReadOnes, {}));
  EXPECT_THAT(written.notes, testing::Contains(HasSubstr("llama.cpp refuses names of more than 63 bytes")));
}

// The ninth byte, the number of tensors, is a line end, like the first byte of a safetensors file's JSON.
TEST(GgufWriterTest, AFileOfTenTensorsIsNoSafetensorsFile) {
  StateDict state;
  for (int i = 0; i < 10; ++i) {
    state.Set(StateKey::Model(absl::StrCat(i)), ShardedTensor{DType::kFloat32, Shape({2}), {}});
  }
  ASSERT_OK_AND_ASSIGN(const Written written, Write(state, ReadOnes, {}));
  EXPECT_EQ(written.bytes[8], '\n');
  EXPECT_THAT(FindFormat(written.path), IsOkAndHolds(&GgufDriver()));
}

}  // namespace
}  // namespace fsdp
