// SPDX-License-Identifier: Apache-2.0
//
// Adapters that PEFT saved, merged by PEFT (testdata/CASE/merged), and adapters of its rarer kinds, made here, against
// the definition in float64.
#include "fsdp/checkpoint/foreign/peft/merged_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/tensor/convert_elements.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::string TestData(const std::string& name) { return "checkpoint/foreign/peft/testdata/" + name; }

absl::StatusOr<std::unique_ptr<TensorSource>> MergeCase(const std::string& name, double alpha_factor = 1) {
  absl::StatusOr<std::unique_ptr<TensorSource>> base = OpenSafetensorsSource(TestData(name + "/base"));
  absl::StatusOr<std::unique_ptr<TensorSource>> adapter = OpenSafetensorsSource(TestData(name + "/adapter"));
  absl::StatusOr<AdapterConfig> config = ReadAdapterConfig(TestData(name + "/adapter"));
  EXPECT_OK(base.status());
  EXPECT_OK(adapter.status());
  EXPECT_OK(config.status());
  config->alpha *= alpha_factor;
  return MergeAdapter(*std::move(base), *std::move(adapter), *config);
}

std::vector<std::byte> BytesOf(const TensorSource& source, const StateKey& key, const Interval& interval) {
  const ShardedTensor& tensor = *source.contents().FindTensor(key);
  std::vector<std::byte> bytes(interval.size() * SizeOf(tensor.dtype));
  EXPECT_OK(source.Read(key, interval, bytes.data()));
  return bytes;
}

std::vector<float> FloatsOf(const TensorSource& source, const StateKey& key) {
  const ShardedTensor& tensor = *source.contents().FindTensor(key);
  const std::vector<std::byte> bytes = BytesOf(source, key, {0, tensor.shape.numel()});
  std::vector<float> floats(tensor.shape.numel());
  EXPECT_OK(Convert(tensor.dtype, bytes.data(), DType::kFloat32, floats.data(), tensor.shape.numel()));
  return floats;
}

// How many float32 are between two numbers of one sign.
int64_t UnitsBetween(float a, float b) {
  int32_t bits[2];
  std::memcpy(&bits[0], &a, 4);
  std::memcpy(&bits[1], &b, 4);
  return std::abs(int64_t{bits[0]} - bits[1]);
}

// Every tensor of PEFT's merged model is equal: 16-bit ones, and those that LoRA does not change, bit for bit, and
// float32 ones to `units` in the last place of the larger of the terms.
void ExpectMergedAsByPeft(const std::string& name) {
  SCOPED_TRACE(name);
  ASSERT_OK_AND_ASSIGN(const auto merged, MergeCase(name));
  ASSERT_OK_AND_ASSIGN(const auto expected, OpenSafetensorsSource(TestData(name + "/merged")));
  ASSERT_EQ(merged->contents().entries().size(), expected->contents().entries().size());
  for (const auto& [key, value] : expected->contents().entries()) {
    SCOPED_TRACE(key.ToString());
    const ShardedTensor* const tensor = merged->contents().FindTensor(key);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, std::get<ShardedTensor>(value).dtype);
    ASSERT_EQ(tensor->shape, std::get<ShardedTensor>(value).shape);
    const Interval all = {0, tensor->shape.numel()};
    if (tensor->dtype != DType::kFloat32) {
      EXPECT_EQ(BytesOf(*merged, key, all), BytesOf(*expected, key, all));
      continue;
    }
    const std::vector<float> ours = FloatsOf(*merged, key);
    const std::vector<float> theirs = FloatsOf(*expected, key);
    for (size_t i = 0; i < ours.size(); ++i) {
      // A sum near zero has more digits than its terms, so its last place says nothing.
      const bool is_near = UnitsBetween(ours[i], theirs[i]) <= 1 || std::abs(ours[i] - theirs[i]) <= 0x1p-24f;
      EXPECT_TRUE(is_near) << ours[i] << " and " << theirs[i] << " at " << i;
    }
  }
}

TEST(MergedSourceTest, MergesAsPeftDoes) {
  ExpectMergedAsByPeft("llama_lora_fp32");
  ExpectMergedAsByPeft("llama_lora_bf16_patterns");    // rsLoRA, patterns, a module that was saved
  ExpectMergedAsByPeft("gpt2_conv1d_fan_in_fan_out");  // Conv1D, biases that were trained
}

TEST(MergedSourceTest, AnyIntervalIsThatOfTheWhole) {
  ASSERT_OK_AND_ASSIGN(const auto merged, MergeCase("gpt2_conv1d_fan_in_fan_out"));
  for (const auto& [key, value] : merged->contents().entries()) {
    const int64_t numel = std::get<ShardedTensor>(value).shape.numel();
    const std::vector<std::byte> whole = BytesOf(*merged, key, {0, numel});
    for (int64_t begin = 0; begin < numel; begin += 7) {
      for (int64_t size : {0, 1, 3, 50}) {
        const Interval interval = {begin, std::min(begin + size, numel)};
        const std::vector<std::byte> part = BytesOf(*merged, key, interval);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * 4)) << key.ToString();
      }
    }
    EXPECT_THAT(merged->Read(key, {0, numel + 1}, nullptr), StatusIs(StatusCode::kInvalidArgument));
  }
}

TEST(MergedSourceTest, TheNotesSayWhatChanged) {
  ASSERT_OK_AND_ASSIGN(const auto merged, MergeCase("llama_lora_bf16_patterns"));
  EXPECT_THAT(merged->layout().notes, ElementsAre("LoRA changes 8 weights, with scales from 2 to 11.3137",
                                                  "replaced by the adapter's: lm_head.weight"));
  EXPECT_EQ(merged->files().size(), 2u);
}

// The scale is in adapter_config.json, which is no file of either source.
TEST(MergedSourceTest, EqualFilesWithAnotherScaleHaveAnotherIdentity) {
  std::vector<std::string> identities;
  for (const double factor : {1.0, 1.0, 1.0 + 1e-15}) {
    ASSERT_OK_AND_ASSIGN(const auto merged, MergeCase("llama_lora_fp32", factor));
    ASSERT_OK_AND_ASSIGN(identities.emplace_back(), merged->Identity());
  }
  EXPECT_EQ(identities[0], identities[1]);
  EXPECT_NE(identities[0], identities[2]);
}

TEST(MergedSourceTest, DoraIsRefusedByItsName) {
  ASSERT_OK_AND_ASSIGN(const AdapterConfig config, ReadAdapterConfig(TestData("llama_dora/adapter")));
  EXPECT_THAT(config.obstacles, ElementsAre("\"use_dora\" is true (DoRA)"));
}

// Tensors of a file that a test makes: name, dtype, shape and element i.
struct Made {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<double(int64_t)> element = [](int64_t i) { return static_cast<double>(i % 7) - 2.5; };
};

class MadeAdapterTest : public testing::Test {
 protected:
  static constexpr char kPeft[] = "base_model.model.";

  std::unique_ptr<TensorSource> Source(const std::string& name, const std::vector<Made>& tensors) {
    const std::string path = absl::StrCat(directory_, "/", name, ".safetensors");
    StateDict state;
    for (const Made& made : tensors) {
      ShardedTensor tensor;
      tensor.dtype = made.dtype;
      tensor.shape = made.shape;
      state.Set(StateKey::Model(made.name), std::move(tensor));
    }
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      const Made& made =
          *std::find_if(tensors.begin(), tensors.end(), [&](const Made& m) { return m.name == key.fqn; });
      std::vector<double> values;
      for (int64_t i = interval.begin; i < interval.end; ++i) values.push_back(made.element(i));
      return Convert(DType::kFloat64, values.data(), made.dtype, out, interval.size());
    };
    SafetensorsOptions options;
    options.overwrite = true;
    EXPECT_OK(WriteSafetensors(path, state, read, options));
    absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenSafetensorsSource(path);
    EXPECT_OK(source.status());
    return *std::move(source);
  }

  // `config` has members in addition to those that every one has.
  absl::StatusOr<std::unique_ptr<TensorSource>> Merge(const std::vector<Made>& base, const std::vector<Made>& adapter,
                                                      const std::string& config = "") {
    const absl::StatusOr<AdapterConfig> parsed =
        ParseAdapterConfig(absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3)", config, "}"));
    EXPECT_OK(parsed.status());
    return MergeAdapter(Source("base", base), Source("adapter", adapter), *parsed);
  }

  // The elements of `name`, by the definition.
  static double Element(int64_t i) { return static_cast<double>(i % 7) - 2.5; }
  static double Product(int64_t row, int64_t column, int64_t in) {  // of B [out, 2] and A [2, in]
    return Element(row * 2) * Element(column) + Element(row * 2 + 1) * Element(in + column);
  }

  const std::string directory_ = NewTestDirectory();
};

TEST_F(MadeAdapterTest, AnEmbeddingIsChangedByTheTransposedProduct) {
  ASSERT_OK_AND_ASSIGN(const auto merged,
                       Merge({{"embed.weight", DType::kFloat32, {5, 3}}},
                             {{absl::StrCat(kPeft, "embed.lora_embedding_A"), DType::kFloat32, {2, 5}},
                              {absl::StrCat(kPeft, "embed.lora_embedding_B"), DType::kFloat32, {3, 2}}}));
  const std::vector<float> values = FloatsOf(*merged, StateKey::Model("embed.weight"));
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_EQ(values[row * 3 + column], Element(row * 3 + column) + 1.5 * Product(column, row, 5));
    }
  }
}

TEST_F(MadeAdapterTest, AConvolutionIsChangedByTheProductOfItsFlattenedInput) {
  ASSERT_OK_AND_ASSIGN(const auto merged,
                       Merge({{"conv.weight", DType::kFloat64, {4, 3, 2, 2}}},
                             {{absl::StrCat(kPeft, "conv.lora_A.weight"), DType::kFloat32, {2, 3, 2, 2}},
                              {absl::StrCat(kPeft, "conv.lora_B.weight"), DType::kFloat32, {4, 2, 1, 1}}}));
  const std::vector<float> values = FloatsOf(*merged, StateKey::Model("conv.weight"));
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(values[i], Element(i) + 1.5 * Product(i / 12, i % 12, 12));
}

// Larger than a tile in both directions, and not a multiple of anything.
TEST_F(MadeAdapterTest, ALargeWeightIsMadeOfTiles) {
  constexpr int64_t kRank = 1000;
  constexpr int64_t kOut = 150;
  constexpr int64_t kIn = 300;
  const auto small = [](int64_t i) { return static_cast<double>(i % 3) - 1; };
  for (const bool is_transposed : {false, true}) {
    ASSERT_OK_AND_ASSIGN(
        const auto merged,
        Merge({{"w.weight", DType::kFloat32, is_transposed ? Shape({kIn, kOut}) : Shape({kOut, kIn}), small}},
              {{absl::StrCat(kPeft, "w.lora_A.weight"), DType::kBFloat16, {kRank, kIn}, small},
               {absl::StrCat(kPeft, "w.lora_B.weight"), DType::kBFloat16, {kOut, kRank}, small}},
              R"(, "rank_pattern": {"w": 1000}, "alpha_pattern": {"w": 1000})"));
    const std::vector<float> values = FloatsOf(*merged, StateKey::Model("w.weight"));
    for (int64_t row = 0; row < kOut; ++row) {
      for (int64_t column = 0; column < kIn; ++column) {
        const int64_t at = is_transposed ? column * kOut + row : row * kIn + column;
        double sum = small(at);
        for (int64_t k = 0; k < kRank; ++k) sum += small(row * kRank + k) * small(k * kIn + column);
        ASSERT_EQ(values[at], sum) << row << ", " << column;
      }
    }
  }
}

TEST_F(MadeAdapterTest, TheBiasOfLoraBIsAddedScaled) {
  ASSERT_OK_AND_ASSIGN(const auto merged,
                       Merge({{"l.weight", DType::kFloat32, {3, 4}}, {"l.bias", DType::kBFloat16, {3}}},
                             {{absl::StrCat(kPeft, "l.lora_A.weight"), DType::kFloat32, {2, 4}},
                              {absl::StrCat(kPeft, "l.lora_B.weight"), DType::kFloat32, {3, 2}},
                              {absl::StrCat(kPeft, "l.lora_B.bias"), DType::kFloat32, {3}}},
                             R"(, "lora_bias": true)"));
  EXPECT_THAT(FloatsOf(*merged, StateKey::Model("l.bias")), ElementsAre(-6.25, -3.75, -1.25));
}

TEST_F(MadeAdapterTest, AnEmbeddingThatWasSavedWholeIsReplacedAndThenChanged) {
  ASSERT_OK_AND_ASSIGN(
      const auto merged,
      Merge({{"embed.weight", DType::kBFloat16, {2, 1}}},
            {{absl::StrCat(kPeft, "embed.base_layer.weight"), DType::kFloat32, {2, 1}, [](int64_t) { return 100; }},
             {absl::StrCat(kPeft, "embed.lora_embedding_A"), DType::kFloat32, {2, 2}},
             {absl::StrCat(kPeft, "embed.lora_embedding_B"), DType::kFloat32, {1, 2}}}));
  EXPECT_EQ(merged->contents().FindTensor(StateKey::Model("embed.weight"))->dtype, DType::kBFloat16);
  // 100 + 1.5 * 7 = 110.5 and 100 + 1.5 * 3 = 104.5
  EXPECT_THAT(FloatsOf(*merged, StateKey::Model("embed.weight")),
              ElementsAre(100 + 1.5 * Product(0, 0, 2), 100 + 1.5 * Product(0, 1, 2)));
}

// The adapter of one square weight.
std::vector<Made> Square(const std::string& module) {
  return {{"base_model.model." + module + ".lora_A.weight", DType::kFloat32, {2, 3}},
          {"base_model.model." + module + ".lora_B.weight", DType::kFloat32, {3, 2}}};
}

TEST_F(MadeAdapterTest, OneRuleMayRenameAllModules) {
  ASSERT_OK_AND_ASSIGN(const auto shorter,
                       Merge({{"h.0.attn.weight", DType::kFloat32, {3, 3}}}, Square("transformer.h.0.attn")));
  EXPECT_THAT(shorter->layout().notes, Contains(HasSubstr(R"("transformer.h.0.attn.weight" is "h.0.attn.weight" in)")));
  ASSERT_OK_AND_ASSIGN(const auto longer,
                       Merge({{"model.h.0.attn.weight", DType::kFloat32, {3, 3}}}, Square("h.0.attn")));
  EXPECT_THAT(longer->layout().notes, Contains(HasSubstr(R"("h.0.attn.weight" is "model.h.0.attn.weight" in)")));
  EXPECT_THAT(Merge({{"a.h.weight", DType::kFloat32, {3, 3}}, {"b.h.weight", DType::kFloat32, {3, 3}}}, Square("h")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("several of its parts have such names")));
  EXPECT_THAT(
      Merge({{"other.weight", DType::kFloat32, {3, 3}}}, Square("h"), R"(, "base_model_name_or_path": "me/it")"),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr(R"(the base has no tensor "h.weight")"), HasSubstr("trained on, me/it?"))));
}

TEST_F(MadeAdapterTest, AModuleOfATaskIsNewAndATiedHeadIsNot) {
  const Made score = {absl::StrCat(kPeft, "score.weight"), DType::kFloat16, {2, 3}};
  std::vector<Made> adapter = Square("q");
  adapter.push_back(score);
  const std::vector<Made> base = {{"q.weight", DType::kFloat32, {3, 3}}};
  ASSERT_OK_AND_ASSIGN(const auto merged, Merge(base, adapter, R"(, "modules_to_save": ["classifier", "score"])"));
  EXPECT_EQ(merged->contents().FindTensor(StateKey::Model("score.weight"))->dtype, DType::kFloat16);
  EXPECT_THAT(FloatsOf(*merged, StateKey::Model("score.weight")), ElementsAre(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5));
  EXPECT_THAT(merged->layout().notes, Contains(HasSubstr("new, from the adapter: score.weight")));
  EXPECT_THAT(Merge(base, adapter),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(R"(the base has no tensor "score.weight")")));
  adapter.back() = {absl::StrCat(kPeft, "lm_head.weight"), DType::kFloat32, {5, 3}};
  EXPECT_THAT(Merge({base[0], {"embed_tokens.weight", DType::kFloat32, {5, 3}}}, adapter,
                    R"(, "modules_to_save": ["lm_head"])"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(R"("lm_head.weight" of its own)"), HasSubstr("embed_tokens.weight"))));
}

TEST_F(MadeAdapterTest, ASquareWeightIsTransposedByTheConfigUnlessThatIsWrong) {
  const std::vector<Made> base = {{"q.weight", DType::kFloat32, {3, 3}}};
  ASSERT_OK_AND_ASSIGN(const auto direct, Merge(base, Square("q")));
  ASSERT_OK_AND_ASSIGN(const auto transposed, Merge(base, Square("q"), R"(, "fan_in_fan_out": true)"));
  EXPECT_EQ(FloatsOf(*direct, StateKey::Model("q.weight"))[1], Element(1) + 1.5 * Product(0, 1, 3));
  EXPECT_EQ(FloatsOf(*transposed, StateKey::Model("q.weight"))[1], Element(1) + 1.5 * Product(1, 0, 3));
  std::vector<Made> adapter = Square("q");
  adapter.push_back({absl::StrCat(kPeft, "p.lora_A.weight"), DType::kFloat32, {2, 4}});
  adapter.push_back({absl::StrCat(kPeft, "p.lora_B.weight"), DType::kFloat32, {3, 2}});
  EXPECT_THAT(Merge({base[0], {"p.weight", DType::kFloat32, {4, 3}}}, adapter),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(R"(module "q" is square)"), HasSubstr(R"(wrong about module "p")"))));
}

TEST_F(MadeAdapterTest, PartsThatDoNotFitAreNamed) {
  const std::vector<Made> base = {{"q.weight", DType::kFloat32, {3, 3}}, {"q.bias", DType::kFloat32, {3}}};
  const auto refuses = [&](const std::vector<Made>& of, const std::vector<Made>& adapter, const std::string& config,
                           const std::string& text) {
    EXPECT_THAT(Merge(of, adapter, config).status().message(), HasSubstr(text));
  };
  refuses(base, {Square("q")[0]}, "", R"("q" has lora_A and not lora_B)");
  refuses(base, {Square("q")[1]}, "", R"("q" has lora_B and not lora_A)");
  refuses({{"q.weight", DType::kFloat32, {3, 4}}}, Square("q"), "", "do not change a weight of the shape [3, 4]");
  refuses({{"q.weight", DType::kInt8, {3, 3}}}, Square("q"), "", "its weight in the base is int8");
  refuses(base, Square("q"), R"(, "rank_pattern": {"q": 4})",
          "its rank is 4 by adapter_config.json, and 2 by the shape");
  refuses(base, Square("q"), R"(, "target_modules": ["k"])",
          R"("target_modules" of adapter_config.json does not name)");
  refuses(base, Square("q"), R"(, "modules_to_save": ["q"])", R"(names "q", of which the base has "q.)");
  refuses(base, Square("q"), R"(, "rank_pattern": {"(": 2})", "without its partner");
  std::string patterns = "\"a*b\": 2";
  for (int i = 0; i < 900; ++i) {
    absl::StrAppend(&patterns, ", \"", std::string(900, 'x'), i, "+\": 2");
  }
  const std::string many = absl::StrCat(R"(, "rank_pattern": {)", patterns, "}");
  std::vector<Made> long_names = Square("q");
  for (int i = 0; i < 40; ++i) {
    for (const Made& made : Square(absl::StrCat(std::string(80, 'm'), i))) long_names.push_back(made);
  }
  refuses(base, long_names, many, "are too many for 41 modules");
  refuses(base, Square(std::string(5000, 'q')), "", "has a name of 5031 bytes, expected at most 4096");
  refuses({{"embed.weight", DType::kFloat32, {5, 3}}}, Square("lm_head"), "", "A base that ties lm_head");
  std::vector<Made> adapter = Square("q");
  const auto with = [&](const std::string& name, Shape shape) {
    std::vector<Made> more = adapter;
    more.push_back({name, DType::kFloat32, std::move(shape)});
    return more;
  };
  refuses(base, with("q.lora_A.weight", {2, 3}), "", "expected names that begin with base_model.model.");
  refuses(base, with("base_model.model.q.lora_magnitude_vector", {3}), "", "is of DoRA");
  refuses(base, with("base_model.model.q.lora_A.other.weight", {2, 3}), "", "none of LoRA's that can be merged");
  refuses(base, with("base_model.model.q.lora_B.bias", {4}), "", "does not have in its shape, [4]");
  refuses(base, with("base_model.model.q.bias", {4}), "", "must be resized before its adapter is merged");
  refuses(base, with("base_model.model.q.lora_embedding_A", {2, 3}), "", "and not lora_embedding_B");
  adapter = with("base_model.model.q.bias", {3});
  refuses(base, with("base_model.model.q.base_layer.bias", {3}), "", R"(both replace "q.bias")");
  refuses(base, {}, "", "the adapter has no tensors");
}

TEST_F(MadeAdapterTest, TargetsWithoutWeightsAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto merged,
                       Merge({{"a.q.weight", DType::kFloat32, {3, 3}}, {"b.q.weight", DType::kFloat32, {3, 3}}},
                             Square("a.q"), R"(, "target_modules": ["q"])"));
  EXPECT_THAT(merged->layout().notes,
              Contains(HasSubstr(R"(1 weight of modules that target_modules names, the first being "b.q.weight")")));
}

}  // namespace
}  // namespace fsdp
