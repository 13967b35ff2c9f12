// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt2.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/language_model_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Gpt2Config SmallConfig() {
  Gpt2Config config;
  config.vocab_size = 11;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = 1;
  config.n_head = 2;
  return config;
}

class Gpt2Test : public LanguageModelTest {};

TEST_F(Gpt2Test, ParametersHaveHuggingFacesNamesAndOrder) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(SmallConfig()));
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model->NamedParameters())
    names.push_back(name + " " + parameter->shape.ToString());
  EXPECT_THAT(names, ElementsAre("transformer.wte.weight [11, 8]", "transformer.wpe.weight [6, 8]",
                                 "transformer.h.0.ln_1.weight [8]", "transformer.h.0.ln_1.bias [8]",
                                 "transformer.h.0.attn.c_attn.weight [8, 24]", "transformer.h.0.attn.c_attn.bias [24]",
                                 "transformer.h.0.attn.c_proj.weight [8, 8]", "transformer.h.0.attn.c_proj.bias [8]",
                                 "transformer.h.0.ln_2.weight [8]", "transformer.h.0.ln_2.bias [8]",
                                 "transformer.h.0.mlp.c_fc.weight [8, 32]", "transformer.h.0.mlp.c_fc.bias [32]",
                                 "transformer.h.0.mlp.c_proj.weight [32, 8]", "transformer.h.0.mlp.c_proj.bias [8]",
                                 "transformer.ln_f.weight [8]", "transformer.ln_f.bias [8]", "lm_head.weight [11, 8]"));
}

TEST_F(Gpt2Test, ModulesHaveHuggingFacesNamesAndTypes) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(SmallConfig()));
  std::vector<std::string> names;
  for (const auto& [path, module] : model->NamedModules())
    names.push_back(path + ":" + std::string(module->type_name()));
  EXPECT_THAT(names, ElementsAre(":GPT2LMHeadModel", "transformer:GPT2Model", "transformer.wte:Embedding",
                                 "transformer.wpe:Embedding", "transformer.h:ModuleList", "transformer.h.0:GPT2Block",
                                 "transformer.h.0.ln_1:LayerNorm", "transformer.h.0.attn:GPT2Attention",
                                 "transformer.h.0.attn.c_attn:Conv1D", "transformer.h.0.attn.c_proj:Conv1D",
                                 "transformer.h.0.ln_2:LayerNorm", "transformer.h.0.mlp:GPT2MLP",
                                 "transformer.h.0.mlp.c_fc:Conv1D", "transformer.h.0.mlp.c_proj:Conv1D",
                                 "transformer.h.0.mlp.act:Activation", "transformer.ln_f:LayerNorm", "lm_head:Linear"));
}

TEST_F(Gpt2Test, TiedHeadIsTheEmbedding) {
  Gpt2Config config = SmallConfig();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> tied, MakeGpt2(config));
  EXPECT_EQ(tied->NamedParameters().back().second->fqn, "transformer.wte.weight");
  config.tie_word_embeddings = false;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> untied, MakeGpt2(config));
  EXPECT_EQ(untied->NamedParameters().back().second->fqn, "lm_head.weight");
  EXPECT_EQ(CountParameters(*untied), CountParameters(*tied) + 11 * 8);
}

TEST_F(Gpt2Test, PresetsHaveTheKnownSizes) {
  const std::pair<const char*, int64_t> presets[] = {{"gpt2-124m", 124439808}, {"gpt2-1558m", 1557611200}};
  for (const auto& [name, count] : presets) {
    ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Gpt2Preset(name));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(config));
    EXPECT_EQ(CountParameters(*model), count) << name;
  }
}

TEST_F(Gpt2Test, ResidualProjectionsStartSmaller) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Gpt2Preset("gpt2-124m"));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(config));
  for (const auto& [name, parameter] : model->NamedParameters()) {
    const bool matrix = parameter->shape.rank() == 2;
    const bool residual = name.find("c_proj.weight") != std::string::npos;
    EXPECT_FLOAT_EQ(parameter->initializer.stddev, matrix ? 0.02 / (residual ? std::sqrt(24.0) : 1) : 0) << name;
    const bool ones = name.find("ln_") != std::string::npos && name.find(".weight") != std::string::npos;
    EXPECT_EQ(parameter->initializer.mean, ones ? 1 : 0) << name;
  }
}

// Each switch of the config must move the loss, and the gradient must fit the moved model, by finite differences of a
// float32 loss along the gradient.
TEST_F(Gpt2Test, EverySwitchChangesTheNumbersAndTheGradientFollows) {
  std::vector<Gpt2Config> variants(8, SmallConfig());
  for (Gpt2Config& config : variants) config.n_layer = 2;
  variants[1].activation_function = "relu";
  variants[2].activation_function = "silu";
  variants[3].n_inner = 13;
  variants[4].layer_norm_epsilon = 0.5;
  variants[5].scale_attn_weights = false;
  variants[6].scale_attn_by_inverse_layer_idx = true;
  variants[7].tie_word_embeddings = false;
  std::vector<double> losses;
  for (Gpt2Config& config : variants) {
    config.initializer_range = 0.5;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(config));
    SCOPED_TRACE(Gpt2ConfigJson(config));
    ASSERT_OK_AND_ASSIGN(const double loss, LossWhoseGradientFits(*model, /*distance=*/2e-3));
    for (const double other : losses) EXPECT_GT(std::abs(loss - other), 1e-5);
    losses.push_back(loss);
  }
}

TEST_F(Gpt2Test, TokenBeyondTheVocabularyIsAnError) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(SmallConfig()));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  EXPECT_THAT(Loss(*model, {1, 11}, {1, 2}, /*backward=*/false),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("token 11 at index 1 of 2")));
}

TEST_F(Gpt2Test, TooLongASequenceIsAnError) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(SmallConfig()));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  EXPECT_THAT(Loss(*model, {1, 2, 3, 4, 5, 6, 7}, {1, 7}, /*backward=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("[1, 7, 8] is not [batch, seq_len, embedding] with seq_len <= 6")));
}

TEST_F(Gpt2Test, FlatTokensAreRefused) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeGpt2(SmallConfig()));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  EXPECT_THAT(Loss(*model, {1, 2}, {2}, /*backward=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokens [2] are not [batch, seq_len]")));
}

}  // namespace
}  // namespace fsdp
