// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/llama_config.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<LlamaConfig> Parse(const std::string& fields) { return ParseLlamaConfig("{" + fields + "}", nullptr); }

TEST(LlamaConfigTest, ReadsEveryFieldThatChangesTheNumbers) {
  ASSERT_OK_AND_ASSIGN(const LlamaConfig config, Parse(R"("model_type": "llama", "vocab_size": 263, "hidden_size": 36,
      "intermediate_size": 101, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
      "head_dim": 8, "hidden_act": "gelu", "max_position_embeddings": 40, "initializer_range": 0.5,
      "rms_norm_eps": 1e-3, "pad_token_id": -2, "tie_word_embeddings": true, "rope_theta": 5e5,
      "rope_scaling": {"rope_type": "linear", "factor": 2}, "attention_bias": true, "mlp_bias": true)"));
  EXPECT_EQ(config.vocab_size, 263);
  EXPECT_EQ(config.hidden_size, 36);
  EXPECT_EQ(config.intermediate_size, 101);
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.num_attention_heads, 6);
  EXPECT_EQ(config.num_key_value_heads, 3);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.hidden_act, "gelu");
  EXPECT_EQ(config.max_position_embeddings, 40);
  EXPECT_EQ(config.initializer_range, 0.5);
  EXPECT_EQ(config.rms_norm_eps, 1e-3);
  EXPECT_EQ(config.pad_token_id, -2);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.rope.factor, 2);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_TRUE(config.mlp_bias);
}

TEST(LlamaConfigTest, AbsentAndNullFieldsHaveHuggingFacesDefaults) {
  ASSERT_OK_AND_ASSIGN(const LlamaConfig config, Parse(R"("num_key_value_heads": null, "head_dim": null,
      "pad_token_id": null, "rope_scaling": null, "pretraining_tp": 1)"));
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.intermediate_size, 11008);
  EXPECT_EQ(config.KeyValueHeads(), 32);
  EXPECT_EQ(config.HeadDim(), 128);
  EXPECT_EQ(config.hidden_act, "silu");
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.theta, 10000);
}

TEST(LlamaConfigTest, DropoutIsTakenAsZeroAndSaid) {
  std::vector<std::string> notes;
  ASSERT_OK(ParseLlamaConfig("{}", &notes));
  ASSERT_OK(ParseLlamaConfig(R"({"attention_dropout": 0.25})", &notes));
  EXPECT_THAT(notes, ElementsAre("attention_dropout is 0.25 and is taken as 0: there is no dropout."));
}

TEST(LlamaConfigTest, UnsupportedFieldsAreRefusedByName) {
  const std::pair<std::string, std::string> refusals[] = {
      {R"("model_type": "mistral")", "llama config: model_type is \"mistral\", wanted \"llama\""},
      {R"("hidden_act": "tanh")", "llama config: hidden_act: "},
      {R"("quantization_config": {"bits": 4})", "quantization_config"},
      {R"("is_causal": false)", "is_causal is false"},
      {R"("hidden_size": 50)", "hidden_size 50 is not divisible by num_attention_heads 32"},
      {R"("num_key_value_heads": 5)", "num_attention_heads 32 is not divisible by num_key_value_heads 5"},
      {R"("num_key_value_heads": 0)", "num_key_value_heads is 0, wanted a positive integer or null"},
      {R"("num_key_value_heads": 64)", "num_key_value_heads is 64, wanted 0 to 32"},
      {R"("head_dim": 7)", "head_dim is 7, wanted an even number"},
      {R"("hidden_size": 96)", "head_dim is 3, wanted an even number"},
      {R"("pad_token_id": 32000)", "pad_token_id is 32000, wanted -32000 to 31999"},
      {R"("rms_norm_eps": -1)", "rms_norm_eps is -1"},
      {R"("rope_scaling": {"rope_type": "yarn"})", "rope_type \"yarn\""},
      {R"("num_hidden_layers": 2.0)", "num_hidden_layers is 2.0, wanted an integer"},
      {R"("mlp_bias": 1)", "mlp_bias is 1, wanted true or false"},
  };
  for (const auto& [fields, message] : refusals) {
    EXPECT_THAT(Parse(fields).status().message(), HasSubstr(message)) << fields;
  }
}

TEST(LlamaConfigTest, WritesWhatItReads) {
  for (const std::string scaling : {"null", R"({"rope_type": "linear", "factor": 2})",
                                    R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 512})"}) {
    ASSERT_OK_AND_ASSIGN(const LlamaConfig config,
                         Parse(R"("hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
      "pad_token_id": 3, "tie_word_embeddings": true, "rope_theta": 77.5, "attention_bias": true, "mlp_bias": true,
      "hidden_act": "relu", "rms_norm_eps": 0.25, "rope_scaling": )" +
                               scaling));
    ASSERT_OK_AND_ASSIGN(const LlamaConfig read, ParseLlamaConfig(LlamaConfigJson(config), nullptr));
    EXPECT_EQ(LlamaConfigJson(read), LlamaConfigJson(config));
    EXPECT_EQ(read.head_dim, 10);
    EXPECT_EQ(read.pad_token_id, 3);
    EXPECT_EQ(read.rope.theta, 77.5);
    EXPECT_EQ(read.rope.type, config.rope.type);
    EXPECT_TRUE(read.attention_bias && read.mlp_bias && read.tie_word_embeddings);
  }
}

TEST(LlamaConfigTest, PresetsAreValidAndListed) {
  for (const char* name : {"llama-tiny", "llama-2-7b", "llama-2-13b", "llama-2-34b", "llama-2-70b", "llama-3.1-8b",
                           "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b"}) {
    ASSERT_OK_AND_ASSIGN(const LlamaConfig config, LlamaPreset(name));
    EXPECT_OK(CheckLlamaConfig(config)) << name;
  }
  EXPECT_THAT(LlamaPreset("llama-4"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no Llama preset \"llama-4\"; there are llama-tiny")));
  EXPECT_THAT(LlamaPreset("llama3.1-8b").status().message(), HasSubstr("(did you mean llama-3.1-8b?)"));
}

}  // namespace
}  // namespace fsdp
