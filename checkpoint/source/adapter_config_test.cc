// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/adapter_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// A LoRA config with `members` in addition.
absl::StatusOr<AdapterConfig> Parse(const std::string& members) {
  return ParseAdapterConfig(absl::StrCat(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16)", members, "}"));
}

TEST(AdapterConfigTest, ReadsWhatAMergeNeeds) {
  ASSERT_OK_AND_ASSIGN(const AdapterConfig config, Parse(R"(, "target_modules": ["q_proj", "v_proj"],
      "base_model_name_or_path": "org/model", "use_rslora": true, "fan_in_fan_out": true, "modules_to_save": ["lm_head"],
      "rank_pattern": {"z": 4, "a": 2}, "alpha_pattern": {"z": 0.5}, "revision": null, "loftq_config": {})"));
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 16);
  EXPECT_TRUE(config.use_rslora);
  EXPECT_TRUE(config.fan_in_fan_out);
  EXPECT_THAT(config.target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(config.modules_to_save, ElementsAre("lm_head"));
  EXPECT_THAT(config.rank_pattern, ElementsAre(Pair("z", 4), Pair("a", 2)));  // in the order of the file
  EXPECT_THAT(config.alpha_pattern, ElementsAre(Pair("z", 0.5)));
  EXPECT_THAT(config.obstacles, IsEmpty());
  EXPECT_EQ(
      config.ToString(),
      "rsLoRA, rank 8 and alpha 16 (others for some modules), of q_proj and v_proj, with the whole lm_head, for the "
      "base model org/model");
}

TEST(AdapterConfigTest, WhatKeepsItFromBeingMergedIsNamed) {
  const auto obstacle = [](const std::string& members) {
    const absl::StatusOr<AdapterConfig> config = Parse(members);
    EXPECT_OK(config.status());
    return config.ok() && config->obstacles.size() == 1 ? config->obstacles[0] : "";
  };
  EXPECT_EQ(obstacle(R"(, "use_dora": true)"), "\"use_dora\" is true (DoRA)");
  EXPECT_EQ(obstacle(R"(, "use_qalora": true)"), "\"use_qalora\" is true");
  EXPECT_EQ(obstacle(R"(, "layer_replication": [[0, 4], [2, 5]])"), "\"layer_replication\" given");
  EXPECT_EQ(obstacle(R"(, "target_parameters": ["experts.down_proj"])"), "\"target_parameters\" given");
  EXPECT_EQ(obstacle(R"(, "init_lora_weights": "pissa_niter_4")"), R"("init_lora_weights" is \"pissa_niter_4\")");
  EXPECT_EQ(obstacle(R"(, "an_option_of_tomorrow": 1)"), "\"an_option_of_tomorrow\" is 1");
  for (const char* harmless :
       {R"(, "init_lora_weights": true)", R"(, "init_lora_weights": "gaussian")", R"(, "an_option_of_tomorrow": null)",
        R"(, "megatron_core": "megatron.core")", R"(, "qalora_group_size": 16)", R"(, "layers_to_transform": [1])"}) {
    EXPECT_EQ(obstacle(harmless), "") << harmless;
  }
  ASSERT_OK_AND_ASSIGN(const AdapterConfig other,
                       ParseAdapterConfig(R"({"peft_type": "IA3", "feedforward_modules": ["x"]})"));
  EXPECT_THAT(other.obstacles, ElementsAre(R"(it is of the type "IA3", and only LORA is merged)"));
  EXPECT_EQ(other.ToString(), "type \"IA3\", for a base model that it does not name");
}

TEST(AdapterConfigTest, AMemberOfTheWrongTypeIsAnError) {
  for (const char* wrong :
       {R"(, "use_rslora": 1)", R"(, "target_modules": [1])", R"(, "target_modules": {})", R"(, "rank_pattern": [])",
        R"(, "alpha_pattern": {"a": "b"})", R"(, "modules_to_save": "a")", R"(, "base_model_name_or_path": 3)",
        R"(, "rank_pattern": {"a": 1e300})"}) {
    EXPECT_THAT(Parse(wrong), StatusIs(StatusCode::kDataLoss, HasSubstr(": expected "))) << wrong;
  }
  EXPECT_THAT(ParseAdapterConfig(R"({"peft_type": "LORA", "r": "8"})"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"r\"")));
  EXPECT_THAT(ParseAdapterConfig("{}"), StatusIs(StatusCode::kDataLoss, HasSubstr("\"peft_type\"")));
  EXPECT_THAT(ParseAdapterConfig("[]"), StatusIs(StatusCode::kDataLoss));
}

}  // namespace
}  // namespace fsdp
