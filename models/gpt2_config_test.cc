// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt2_config.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kNoDropout[] = R"("resid_pdrop": 0.0, "embd_pdrop": 0, "attn_pdrop": 0.0)";

absl::StatusOr<Gpt2Config> Parse(const std::string& fields) { return ParseGpt2Config("{" + fields + "}", nullptr); }

TEST(Gpt2ConfigTest, ReadsEveryFieldThatChangesTheNumbers) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Parse(R"("model_type": "gpt2", "vocab_size": 263, "n_positions": 40,
      "n_embd": 36, "n_layer": 2, "n_head": 3, "n_inner": 101, "activation_function": "relu",
      "layer_norm_epsilon": 1e-6, "initializer_range": 0.5, "scale_attn_weights": false,
      "scale_attn_by_inverse_layer_idx": true, "reorder_and_upcast_attn": true, "tie_word_embeddings": false)"));
  EXPECT_EQ(config.vocab_size, 263);
  EXPECT_EQ(config.n_positions, 40);
  EXPECT_EQ(config.n_embd, 36);
  EXPECT_EQ(config.n_layer, 2);
  EXPECT_EQ(config.n_head, 3);
  EXPECT_EQ(config.n_inner, 101);
  EXPECT_EQ(config.activation_function, "relu");
  EXPECT_EQ(config.layer_norm_epsilon, 1e-6);
  EXPECT_EQ(config.initializer_range, 0.5);
  EXPECT_FALSE(config.scale_attn_weights);
  EXPECT_TRUE(config.scale_attn_by_inverse_layer_idx);
  EXPECT_TRUE(config.reorder_and_upcast_attn);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(Gpt2ConfigTest, AbsentFieldsHaveHuggingFacesDefaults) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Parse(R"("n_inner": null)"));
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.n_positions, 1024);
  EXPECT_EQ(config.n_embd, 768);
  EXPECT_EQ(config.n_inner, 0);
  EXPECT_EQ(config.activation_function, "gelu_new");
}

TEST(Gpt2ConfigTest, AliasesAreObeyed) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Parse(R"("hidden_size": 64, "num_attention_heads": 4,
      "num_hidden_layers": 3, "max_position_embeddings": 99)"));
  EXPECT_EQ(config.n_embd, 64);
  EXPECT_EQ(config.n_head, 4);
  EXPECT_EQ(config.n_layer, 3);
  EXPECT_EQ(config.n_positions, 99);
  EXPECT_THAT(Parse(R"("n_embd": 64, "hidden_size": 128, "n_head": 4)"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("n_embd is 64 but its alias hidden_size is 128")));
}

TEST(Gpt2ConfigTest, FieldsThatDoNotChangeTheNumbersAreIgnored) {
  EXPECT_OK(Parse(R"("use_cache": true, "summary_type": "cls_index", "summary_first_dropout": 0.1, "n_ctx": 5,
      "add_cross_attention": false, "pruned_heads": {}, "transformers_version": "5.23.0", "task_specific_params": {})"));
}

TEST(Gpt2ConfigTest, DropoutIsTakenAsZeroAndSaid) {
  std::vector<std::string> notes;
  ASSERT_OK(ParseGpt2Config("{" + std::string(kNoDropout) + "}", &notes));
  EXPECT_THAT(notes, IsEmpty());
  ASSERT_OK(ParseGpt2Config(R"({"resid_pdrop": 0.25, "embd_pdrop": 0.0})", &notes));
  EXPECT_THAT(notes, ElementsAre("resid_pdrop is 0.25 and is taken as 0: there is no dropout.",
                                 "attn_pdrop is 0.1 by default and is taken as 0: there is no dropout."));
}

struct Refusal {
  const char* fields;
  absl::StatusCode code;
  const char* message;
};

TEST(Gpt2ConfigTest, UnsupportedFieldsAreRefusedByName) {
  const Refusal refusals[] = {
      {R"("model_type": "llama")", absl::StatusCode::kInvalidArgument, "model_type is \"llama\", wanted \"gpt2\""},
      {R"("activation_function": "tanh")", absl::StatusCode::kUnimplemented, "activation_function: "},
      {R"("add_cross_attention": true)", absl::StatusCode::kUnimplemented, "add_cross_attention is true"},
      {R"("pruned_heads": {"0": [1]})", absl::StatusCode::kUnimplemented, "pruned_heads"},
      {R"("quantization_config": {"bits": 4})", absl::StatusCode::kUnimplemented, "quantization_config"},
      {R"("n_layer": "12")", absl::StatusCode::kInvalidArgument, "n_layer is \"12\", wanted an integer"},
      {R"("n_layer": 12.0)", absl::StatusCode::kInvalidArgument, "n_layer is 12.0, wanted an integer"},
      {R"("n_layer": 0)", absl::StatusCode::kInvalidArgument, "n_layer is 0"},
      {R"("n_layer": -1)", absl::StatusCode::kInvalidArgument, "n_layer is -1"},
      {R"("vocab_size": 18446744073709551615)", absl::StatusCode::kInvalidArgument, "vocab_size"},
      {R"("vocab_size": 2147483648, "n_embd": 2147483644)", absl::StatusCode::kInvalidArgument, ""},
      {R"("n_inner": 0)", absl::StatusCode::kInvalidArgument, "n_inner is 0"},
      {R"("n_embd": 50, "n_head": 12)", absl::StatusCode::kInvalidArgument, "n_embd 50 is not divisible by n_head 12"},
      {R"("layer_norm_epsilon": -1)", absl::StatusCode::kInvalidArgument, "layer_norm_epsilon is -1"},
      {R"("initializer_range": "a")", absl::StatusCode::kInvalidArgument, "initializer_range"},
      {R"("scale_attn_weights": 1)", absl::StatusCode::kInvalidArgument,
       "scale_attn_weights is 1, wanted true or false"},
      {R"("tie_word_embeddings": null)", absl::StatusCode::kInvalidArgument, "tie_word_embeddings"},
      {R"("attn_pdrop": "x")", absl::StatusCode::kInvalidArgument, "attn_pdrop"},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(Parse(refusal.fields), StatusIs(refusal.code, HasSubstr(refusal.message))) << refusal.fields;
  }
}

TEST(Gpt2ConfigTest, TextThatIsNotAnObjectIsRefused) {
  for (const char* text : {"", "[]", "{", "nonsense", "{\"n_layer\": 1,}"}) {
    EXPECT_THAT(ParseGpt2Config(text, nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")))
        << text;
  }
}

TEST(Gpt2ConfigTest, WritesWhatItReads) {
  Gpt2Config config;
  config.n_embd = 36;
  config.n_head = 3;
  config.n_inner = 101;
  config.activation_function = "silu";
  config.scale_attn_by_inverse_layer_idx = true;
  config.tie_word_embeddings = false;
  std::vector<std::string> notes;
  ASSERT_OK_AND_ASSIGN(const Gpt2Config read, ParseGpt2Config(Gpt2ConfigJson(config), &notes));
  EXPECT_EQ(Gpt2ConfigJson(read), Gpt2ConfigJson(config));
  EXPECT_EQ(read.n_inner, 101);
  EXPECT_EQ(read.activation_function, "silu");
  EXPECT_TRUE(read.scale_attn_by_inverse_layer_idx);
  EXPECT_FALSE(read.tie_word_embeddings);
  EXPECT_THAT(notes, IsEmpty());
}

TEST(Gpt2ConfigTest, PresetsAreValidAndListed) {
  for (const char* name : {"gpt2-tiny", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m", "mingpt-175b"}) {
    ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Gpt2Preset(name));
    EXPECT_OK(CheckGpt2Config(config)) << name;
  }
  EXPECT_THAT(Gpt2Preset("gpt3"), StatusIs(absl::StatusCode::kNotFound,
                                           HasSubstr("no GPT-2 preset \"gpt3\"; there are gpt2-tiny, gpt2-124m")));
  EXPECT_THAT(Gpt2Preset("gpt2-tiy").status().message(), HasSubstr("\"gpt2-tiy\" (did you mean gpt2-tiny?); there"));
}

}  // namespace
}  // namespace fsdp
