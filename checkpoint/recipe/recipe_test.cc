// SPDX-License-Identifier: Apache-2.0
//
// Layouts of transformers, Meta, Megatron and GPT-NeoX in testdata/: a model, a recipe, and the SHA-256 of each tensor
// that torch makes by it. Large shapes are compared with arithmetic on indices.
#include "fsdp/checkpoint/recipe/recipe.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/recipe/recipe_source.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

// A model of int64 tensors whose elements are their indices.
class CountingSource final : public TensorSource {
 public:
  explicit CountingSource(const std::vector<std::pair<std::string, Shape>>& tensors) {
    for (const auto& [name, shape] : tensors) {
      ShardedTensor tensor;
      tensor.dtype = DType::kInt64;
      tensor.shape = shape;
      contents_.Set(StateKey::Model(name), std::move(tensor));
    }
  }

  const FormatTraits& traits() const override { return SafetensorsDriver().traits(); }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {}; }
  absl::Status Read(const StateKey&, const Interval& interval, void* out) const override {
    auto* to = static_cast<int64_t*>(out);
    for (int64_t i = interval.begin; i < interval.end; ++i) *to++ = i;
    return absl::OkStatus();
  }

 private:
  StateDict contents_;
  const std::map<std::string, std::string> metadata_;
};

absl::StatusOr<std::unique_ptr<TensorSource>> Apply(const std::vector<std::pair<std::string, Shape>>& tensors,
                                                    const std::string& target) {
  FSDP_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(absl::StrCat(R"({"targets": {"t": )", target, "}}")));
  return ApplyRecipe(std::make_unique<CountingSource>(tensors), recipe);
}

// Reads "t" in `step` elements at a time.
std::vector<int64_t> ReadIn(const TensorSource& source, int64_t step) {
  const StateKey key = StateKey::Model("t");
  std::vector<int64_t> values(source.contents().FindTensor(key)->shape.numel());
  const auto numel = static_cast<int64_t>(values.size());
  for (int64_t begin = 0; begin < numel; begin += step) {
    EXPECT_OK(source.Read(key, {begin, std::min(numel, begin + step)}, values.data() + begin));
  }
  return values;
}

std::string Source(const std::string& name) { return absl::StrCat(R"({"op": "source", "name": ")", name, "\"}"); }

class RecipeGoldenTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Layouts, RecipeGoldenTest,
                         testing::Values("cast", "gpt2_to_split_qkv", "gpt_neox_fuse_interleaved_qkv",
                                         "gpt_neox_split_interleaved_qkv", "hf_mixtral", "hf_qwen3_vl_moe_transposed",
                                         "interleave_forward", "interleave_inverse", "llama_hf_to_meta",
                                         "llama_meta_to_hf", "llama_to_megatron_grouped_qkv", "phi3_split_qkv_gate_up",
                                         "rope_permute_bias"),
                         [](const auto& info) { return info.param; });

TEST_P(RecipeGoldenTest, EveryTargetHasTheBytesThatTorchMakes) {
  const std::string directory = absl::StrCat("checkpoint/recipe/testdata/", GetParam());
  ASSERT_OK_AND_ASSIGN(const Recipe recipe, ReadRecipe(directory + "/recipe.json"));
  ASSERT_OK_AND_ASSIGN(auto before, OpenTensorSource(directory + "/before.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto source, ApplyRecipe(std::move(before), recipe));
  const json expected = json::parse(ReadFile(directory + "/expected.json"));
  ASSERT_EQ(source->contents().entries().size(), expected.size());
  for (const auto& [name, tensor] : expected.items()) {
    const StateKey key = StateKey::Model(name);
    const ShardedTensor* const made = source->contents().FindTensor(key);
    ASSERT_NE(made, nullptr) << name;
    EXPECT_EQ(std::string(DTypeName(made->dtype)), tensor["dtype"]) << name;
    EXPECT_EQ(made->shape, *Shape::Create(tensor["shape"].get<std::vector<int64_t>>())) << name;
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*source, key));
    EXPECT_EQ(Sha256(bytes), tensor["sha256"]) << name;
    std::string part(SizeOf(made->dtype) * (made->shape.numel() / 2), '\0');
    const int64_t begin = made->shape.numel() / 3;
    ASSERT_OK(source->Read(key, {begin, begin + made->shape.numel() / 2}, part.data()));
    EXPECT_EQ(part, bytes.substr(begin * SizeOf(made->dtype), part.size())) << name;
  }
}

// Rows that fit in the scratch memory, and rows that do not, in pieces of any size.
TEST(RecipeTest, LargeTensorsAreRightInAnyPieces) {
  const Shape shapes[] = {{700, 900}, {3, 300'000}, {300'000, 3}, {2, 600'000}};
  for (const Shape& shape : shapes) {
    const int64_t rows = shape.dim(0);
    const int64_t columns = shape.dim(1);
    ASSERT_OK_AND_ASSIGN(const auto turned, Apply({{"w", shape}}, absl::StrCat(R"({"op": "transpose", "axes": [0, 1],
        "input": )",
                                                                               Source("w"), "}")));
    ASSERT_OK_AND_ASSIGN(const auto joined, Apply({{"w", shape}}, absl::StrCat(R"({"op": "concat", "axis": -1,
        "inputs": [)",
                                                                               Source("w"), ", ", Source("w"), "]}")));
    ASSERT_OK_AND_ASSIGN(const auto cut,
                         Apply({{"w", shape}}, absl::StrCat(R"({"op": "slice", "axis": 1, "begin": 1,
        "end": )",
                                                            columns - 1, R"(, "input": )", Source("w"), "}")));
    for (const int64_t step : {rows * columns * 2, int64_t{100'003}}) {
      const std::vector<int64_t> of_turned = ReadIn(*turned, step);
      const std::vector<int64_t> of_joined = ReadIn(*joined, step);
      const std::vector<int64_t> of_cut = ReadIn(*cut, step);
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t value = r * columns + c;
          wrong += of_turned[c * rows + r] != value;
          wrong += of_joined[r * 2 * columns + c] != value || of_joined[(r * 2 + 1) * columns + c] != value;
          wrong += c > 0 && c < columns - 1 && of_cut[r * (columns - 2) + c - 1] != value;
        }
      }
      EXPECT_EQ(wrong, 0) << shape.ToString() << " " << step;
    }
  }
}

TEST(RecipeTest, TensorsWithoutElementsAreMade) {
  for (const char* target :
       {R"({"op": "transpose", "axes": [0, 1], "input": )", R"({"op": "interleave", "axis": 0, "input": )",
        R"({"op": "slice", "axis": 1, "begin": 2, "end": 2, "input": )"}) {
    ASSERT_OK_AND_ASSIGN(const auto source, Apply({{"w", {0, 4}}}, absl::StrCat(target, Source("w"), "}")));
    EXPECT_TRUE(ReadIn(*source, 1).empty());
  }
}

TEST(RecipeTest, EveryTargetThatDoesNotFitIsNamedBeforeAnythingIsRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Source("none"), "\"t\": the model has no tensor \"none\""},
      {absl::StrCat(R"({"op": "concat", "axis": 0, "inputs": [)", Source("w"), ", ", Source("v"), "]}"),
       "int64 [5] does not fit int64 [4, 6] along axis 0"},
      {absl::StrCat(R"({"op": "stack", "axis": 3, "inputs": [)", Source("w"), "]}"), "axis 3 of 3 dimensions"},
      {absl::StrCat(R"({"op": "chunk", "axis": 0, "index": 0, "count": 3, "input": )", Source("w"), "}"),
       "chunk 0 of 3 of axis 0 of [4, 6], which it does not divide"},
      {absl::StrCat(R"({"op": "slice", "axis": 0, "begin": 1, "end": 5, "input": )", Source("w"), "}"),
       "slice [1, 5) of axis 0 of [4, 6]"},
      {absl::StrCat(R"({"op": "reshape", "shape": [5], "input": )", Source("w"), "}"),
       "[4, 6] cannot have the shape [5]"},
      {absl::StrCat(R"({"op": "rope_permute", "heads": 3, "input": )", Source("w"), "}"),
       "axis 0 of [4, 6] is not divided by 6, two halves of each head"},
      {absl::StrCat(R"({"op": "interleave", "axis": 0, "input": )", Source("v"), "}"),
       "axis 0 of [5] is not divided by 2"},
      {absl::StrCat(R"({"op": "cast", "dtype": "bfloat16", "input": )", Source("v"), "}"), "only floats are cast"},
      {absl::StrCat(R"({"op": "transpose", "axes": [0, 2], "input": )", Source("w"), "}"), "axis 2 of 2 dimensions"},
  };
  for (const auto& [target, message] : cases) {
    EXPECT_THAT(Apply({{"w", {4, 6}}, {"v", {5}}}, target),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("1 of 1 targets of the recipe do not fit"), HasSubstr(message))))
        << message;
  }
}

TEST(RecipeTest, TextsOfAnotherFormAreRefused) {
  std::string deep = Source("w");
  for (int i = 0; i < 40; ++i) deep = absl::StrCat(R"({"op": "reshape", "shape": [1], "input": )", deep, "}");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "it has no \"targets\""},
      {R"({"targets": {"t": {"op": "sort"}}})", "target \"t\": there is no operation \"sort\""},
      {R"({"targets": {"t": {"op": "source"}}})", "source: \"name\" is missing or no text"},
      {R"({"targets": {"t": {"op": "concat", "axis": 0, "inputs": []}}})", "\"inputs\" is missing or empty"},
      {R"({"targets": {"t": {"op": "chunk", "axis": 0, "index": 0.5}}})", "\"index\" is missing or no whole number"},
      {absl::StrCat(R"({"targets": {"t": )", deep, "}}"), "more than 32 operations in one another"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(ParseRecipe(text), StatusIs(StatusCode::kDataLoss, HasSubstr(message)));
  }
}

TEST(RecipeTest, TensorsThatNoTargetUsesAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto source, Apply({{"w", {4}}, {"left", {5}}}, Source("w")));
  EXPECT_THAT(source->layout().notes, Contains("the recipe does not use 1 tensor: left"));
}

}  // namespace
}  // namespace fsdp
