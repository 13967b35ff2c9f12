// SPDX-License-Identifier: Apache-2.0
//
// Two configs have equal attributes if they are the same model. Each case changes one field of a config.json.
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/causal_lm.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// How the model of kind `model_type` with `fields` differs from the one with `base`.
std::vector<std::string> Differences(const std::string& model_type, const std::string& base,
                                     const std::string& fields) {
  const auto a = ParseCausalLmConfig(model_type, "{" + base + "}", nullptr);
  const auto b = ParseCausalLmConfig(model_type, "{" + fields + "}", nullptr);
  EXPECT_OK(a);
  EXPECT_OK(b);
  std::vector<std::string> lines;
  if (!a.ok() || !b.ok()) return lines;
  for (const AttributeDifference& difference : CompareAttributes(CausalLmAttributes(*a), CausalLmAttributes(*b))) {
    lines.push_back(ToString(difference));
  }
  return lines;
}

// A field of a config.json, and the text of its difference from the default.
struct Change {
  std::string field, line;
};

TEST(CausalLmAttributesTest, EveryFieldOfGpt2ThatChangesTheNumbersIsNamed) {
  const std::vector<Change> changes = {
      {R"("n_head": 6)", "n_head: 12 -> 6"},
      {R"("activation_function": "relu")", R"(activation_function: "gelu_new" -> "relu")"},
      {R"("layer_norm_epsilon": 0.1)", "layer_norm_epsilon: 1e-05 -> 0.1"},
      {R"("tie_word_embeddings": false)", "tie_word_embeddings: true -> false"},
      {R"("scale_attn_weights": false)", "scale_attn_weights: true -> false"},
      {R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx: false -> true"},
      {R"("reorder_and_upcast_attn": true)", "reorder_and_upcast_attn: false -> true"},
      {R"("vocab_size": 7)", "vocab_size: 50257 -> 7"},
      {R"("n_positions": 7)", "n_positions: 1024 -> 7"},
      {R"("n_layer": 7)", "n_layer: 12 -> 7"},
      {R"("n_inner": 7)", "n_inner: 3072 -> 7"},
  };
  for (const Change& c : changes) EXPECT_THAT(Differences("gpt2", "", c.field), ElementsAre(c.line));
  EXPECT_THAT(Differences("gpt2", "", R"("n_inner": 3072, "initializer_range": 0.5, "resid_pdrop": 0.5)"), IsEmpty());
}

TEST(CausalLmAttributesTest, EveryFieldOfLlamaThatChangesTheNumbersIsNamed) {
  const std::vector<Change> changes = {
      {R"("num_key_value_heads": 8)", "num_key_value_heads: 32 -> 8"},
      {R"("head_dim": 64)", "head_dim: 128 -> 64"},
      {R"("hidden_act": "gelu")", R"(hidden_act: "silu" -> "gelu")"},
      {R"("rms_norm_eps": 1e-5)", "rms_norm_eps: 1e-06 -> 1e-05"},
      {R"("tie_word_embeddings": true)", "tie_word_embeddings: false -> true"},
      {R"("rope_theta": 500000)", "rope_theta: 10000.0 -> 5e+05"},
      {R"("pad_token_id": 3)", "pad_token_id: null -> 3"},
      {R"("attention_bias": true)", "attention_bias: false -> true"},
      {R"("mlp_bias": true)", "mlp_bias: false -> true"},
      {R"("intermediate_size": 7)", "intermediate_size: 11008 -> 7"},
      {R"("num_hidden_layers": 7)", "num_hidden_layers: 32 -> 7"},
  };
  for (const Change& c : changes) EXPECT_THAT(Differences("llama", "", c.field), ElementsAre(c.line));
  EXPECT_THAT(Differences("llama", "", R"("num_attention_heads": 16)"),
              ElementsAre("head_dim: 128 -> 256", "num_attention_heads: 32 -> 16", "num_key_value_heads: 32 -> 16"));
  EXPECT_THAT(
      Differences("llama", "", R"("num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 4096)"),
      IsEmpty());
}

TEST(CausalLmAttributesTest, TheScalingOfRopeIsComparedFieldByField) {
  const std::string llama3 = R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192})";
  EXPECT_THAT(Differences("llama", llama3, R"("rope_scaling": {"rope_type": "llama3", "factor": 32,
      "low_freq_factor": 2, "high_freq_factor": 5, "original_max_position_embeddings": 4096})"),
              ElementsAre("rope_scaling.factor: 8.0 -> 32.0", "rope_scaling.high_freq_factor: 4.0 -> 5.0",
                          "rope_scaling.low_freq_factor: 1.0 -> 2.0",
                          "rope_scaling.original_max_position_embeddings: 8192 -> 4096"));
  EXPECT_THAT(Differences("llama", "", R"("rope_scaling": {"rope_type": "linear", "factor": 2})"),
              ElementsAre("rope_scaling.factor: not recorded -> 2.0", R"(rope_type: "default" -> "linear")"));
}

TEST(CausalLmAttributesTest, TheKindOfModelIsOneOfThem) {
  EXPECT_EQ(CausalLmAttributes(Gpt2Config()).at("model_type"), AttributeValue("gpt2"));
  EXPECT_EQ(CausalLmAttributes(LlamaConfig()).at("model_type"), AttributeValue("llama"));
  EXPECT_EQ(OtherCausalLmAttributes(LlamaConfig()),
            (RunMetadata{{"initializer_range", 0.02}, {"max_position_embeddings", 2048}}));
}

}  // namespace
}  // namespace fsdp
