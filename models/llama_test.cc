// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/llama.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/models/language_model_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LlamaConfig SmallConfig() {
  LlamaConfig config;
  config.vocab_size = 11;
  config.hidden_size = 12;
  config.intermediate_size = 7;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  return config;
}

class LlamaTest : public LanguageModelTest {};

TEST_F(LlamaTest, ParametersHaveHuggingFacesNamesAndOrder) {
  LlamaConfig config = SmallConfig();
  config.attention_bias = true;
  config.mlp_bias = true;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(config));
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model->NamedParameters()) {
    names.push_back(name + " " + parameter->shape.ToString());
  }
  EXPECT_THAT(names,
              ElementsAre("model.embed_tokens.weight [11, 12]", "model.layers.0.self_attn.q_proj.weight [24, 12]",
                          "model.layers.0.self_attn.q_proj.bias [24]", "model.layers.0.self_attn.k_proj.weight [8, 12]",
                          "model.layers.0.self_attn.k_proj.bias [8]", "model.layers.0.self_attn.v_proj.weight [8, 12]",
                          "model.layers.0.self_attn.v_proj.bias [8]", "model.layers.0.self_attn.o_proj.weight [12, 24]",
                          "model.layers.0.self_attn.o_proj.bias [12]", "model.layers.0.mlp.gate_proj.weight [7, 12]",
                          "model.layers.0.mlp.gate_proj.bias [7]", "model.layers.0.mlp.up_proj.weight [7, 12]",
                          "model.layers.0.mlp.up_proj.bias [7]", "model.layers.0.mlp.down_proj.weight [12, 7]",
                          "model.layers.0.mlp.down_proj.bias [12]", "model.layers.0.input_layernorm.weight [12]",
                          "model.layers.0.post_attention_layernorm.weight [12]", "model.norm.weight [12]",
                          "lm_head.weight [11, 12]"));
}

TEST_F(LlamaTest, ModulesHaveHuggingFacesNamesAndTypes) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(SmallConfig()));
  std::vector<std::string> names;
  for (const auto& [path, module] : model->NamedModules()) {
    names.push_back(path + ":" + std::string(module->type_name()));
  }
  EXPECT_THAT(names, ElementsAre(":LlamaForCausalLM", "model:LlamaModel", "model.embed_tokens:Embedding",
                                 "model.layers:ModuleList", "model.layers.0:LlamaDecoderLayer",
                                 "model.layers.0.self_attn:LlamaAttention", "model.layers.0.self_attn.q_proj:Linear",
                                 "model.layers.0.self_attn.k_proj:Linear", "model.layers.0.self_attn.v_proj:Linear",
                                 "model.layers.0.self_attn.o_proj:Linear", "model.layers.0.mlp:LlamaMLP",
                                 "model.layers.0.mlp.gate_proj:Linear", "model.layers.0.mlp.up_proj:Linear",
                                 "model.layers.0.mlp.down_proj:Linear", "model.layers.0.input_layernorm:LlamaRMSNorm",
                                 "model.layers.0.post_attention_layernorm:LlamaRMSNorm", "model.norm:LlamaRMSNorm",
                                 "model.rotary_emb:LlamaRotaryEmbedding", "lm_head:Linear"));
}

TEST_F(LlamaTest, FrequenciesAreBuffersByHuggingFacesNames) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(SmallConfig()));
  std::vector<std::string> names;
  for (const auto& [name, buffer] : model->NamedBuffers()) {
    names.push_back(name);
    EXPECT_EQ(buffer->persistence, BufferPersistence::kNonPersistent) << name;
  }
  EXPECT_THAT(names, ElementsAre("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"));
}

TEST_F(LlamaTest, TiedHeadIsTheEmbedding) {
  LlamaConfig config = SmallConfig();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> untied, MakeLlama(config));
  EXPECT_EQ(untied->NamedParameters().back().second->fqn, "lm_head.weight");
  config.tie_word_embeddings = true;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> tied, MakeLlama(config));
  EXPECT_EQ(tied->NamedParameters().back().second->fqn, "model.embed_tokens.weight");
  EXPECT_EQ(CountParameters(*untied), CountParameters(*tied) + 11 * 12);
}

TEST_F(LlamaTest, PresetsHaveTheKnownSizes) {
  const std::pair<const char*, int64_t> presets[] = {{"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},
                                                     {"llama-2-70b", 68976648192},   {"llama-3.1-8b", 8030261248},
                                                     {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800},
                                                     {"llama-3.2-1b", 1235814400}};
  for (const auto& [name, count] : presets) {
    ASSERT_OK_AND_ASSIGN(const LlamaConfig config, LlamaPreset(name));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(config));
    EXPECT_EQ(CountParameters(*model), count) << name;
  }
}

TEST_F(LlamaTest, PaddingTokenStartsAtZeroAndIsNotTrained) {
  LlamaConfig config = SmallConfig();
  config.pad_token_id = -3;  // token 8
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(config));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  ASSERT_OK(Loss(*model, {1, 8, 8, 2, 9, 7}, {2, 3}, /*backward=*/true));
  const std::shared_ptr<Parameter> table = model->NamedParameters().front().second;
  for (int64_t token = 0; token < 11; ++token) {
    double size = 0, grad = 0;
    for (int64_t i = token * 12; i < (token + 1) * 12; ++i) {
      size += std::abs(table->data.data_as<float>()[i]);
      grad += std::abs(table->grad.data_as<float>()[i]);
    }
    EXPECT_EQ(size > 0, token != 8) << token;
    EXPECT_EQ(grad > 0, token == 1 || token == 2 || token == 7 || token == 9) << token;
  }
}

// Each switch of the config must move the loss, and the gradient must fit the moved model, by finite differences of a
// float32 loss along the gradient.
TEST_F(LlamaTest, EverySwitchChangesTheNumbersAndTheGradientFollows) {
  std::vector<LlamaConfig> variants(13, SmallConfig());
  for (LlamaConfig& config : variants) config.num_hidden_layers = 2;
  variants[1].hidden_act = "relu";
  variants[2].hidden_act = "gelu";
  variants[3].intermediate_size = 13;
  variants[4].rms_norm_eps = 0.5;
  variants[5].num_key_value_heads = 6;
  variants[6].num_key_value_heads = 1;
  variants[7].tie_word_embeddings = true;
  variants[8].head_dim = 0;
  variants[9].rope.theta = 3;
  variants[10].rope = {.type = RopeConfig::Type::kLinear, .factor = 4};
  variants[11].rope = {.type = RopeConfig::Type::kLlama3, .factor = 8, .original_max_position_embeddings = 5};
  variants[12].pad_token_id = 3;
  std::vector<double> losses;
  for (LlamaConfig& config : variants) {
    config.initializer_range = 0.5;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(config));
    SCOPED_TRACE(LlamaConfigJson(config));
    ASSERT_OK_AND_ASSIGN(const double loss, LossWhoseGradientFits(*model, /*distance=*/5e-4));
    for (const double other : losses) EXPECT_GT(std::abs(loss - other), 1e-5);
    losses.push_back(loss);
  }
}

TEST_F(LlamaTest, SequencesMayBeLongerThanBefore) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(SmallConfig()));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  ASSERT_OK_AND_ASSIGN(const double at_first, Loss(*model, tokens, {3, 2}, /*backward=*/false));
  ASSERT_OK(Loss(*model, tokens, {1, 6}, /*backward=*/false));  // makes a longer table
  EXPECT_THAT(Loss(*model, tokens, {3, 2}, /*backward=*/false), IsOkAndHolds(at_first));
}

TEST_F(LlamaTest, FlatTokensAreRefused) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Module> model, MakeLlama(SmallConfig()));
  ASSERT_OK(model->Materialize(*device_, /*seed=*/1));
  EXPECT_THAT(Loss(*model, {1, 2}, {2}, /*backward=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("llama: tokens [2] are not [batch, seq_len]")));
}

}  // namespace
}  // namespace fsdp
