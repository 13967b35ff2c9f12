// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/tied_head.h"

#include <fstream>

#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

class TiedHeadTest : public testing::Test {
 protected:
  static TiedHead HeadOf(const std::string& config, const std::vector<std::string>& names = {kEmbedding, "norm"}) {
    std::ofstream(testing::TempDir() + "/config.json") << config;
    TiedHead head = TiedHead::Of(testing::TempDir());
    for (const std::string& name : names) head.Add(name);
    return head;
  }
};

TEST_F(TiedHeadTest, ConfigTiesTheHeadToTheEmbedding) {
  for (const char* config :
       {R"({"tie_word_embeddings": true})", R"({"tie_word_embeddings": true, "architectures": ["LlamaForCausalLM"]})",
        R"({"text_config": {"tie_word_embeddings": true}, "architectures": null})"}) {
    const TiedHead head = HeadOf(config);
    EXPECT_THAT(head.names(), Pair("lm_head.weight", kEmbedding)) << config;
    EXPECT_EQ(head.note(), "lm_head.weight, which is in no file, is model.embed_tokens.weight: config.json ties it");
  }
}

TEST_F(TiedHeadTest, AClassWithAHeadTiesItUnlessConfigSaysNo) {
  const TiedHead head = HeadOf(R"({"architectures": ["GPT2LMHeadModel"]})", {"transformer.wte.weight"});
  EXPECT_THAT(head.names(), Pair("lm_head.weight", "transformer.wte.weight"));
  EXPECT_THAT(head.note(), HasSubstr("config.json names GPT2LMHeadModel, which has one"));
  for (const char* config : {R"({"tie_word_embeddings": false, "architectures": ["GPT2LMHeadModel"]})",
                             R"({"tie_word_embeddings": true, "architectures": ["LlamaModel"]})",
                             R"({"architectures": ["LlamaModel"]})", R"({"architectures": "GPT2LMHeadModel"})", "{}"}) {
    EXPECT_THAT(HeadOf(config).names(), Pair("", "")) << config;
    EXPECT_THAT(HeadOf(config).note(), IsEmpty()) << config;
  }
}

TEST_F(TiedHeadTest, AHeadInAFileIsNotTied) {
  const TiedHead head = HeadOf(R"({"tie_word_embeddings": true})", {kEmbedding, "lm_head.weight"});
  EXPECT_THAT(head.names(), Pair("", ""));
  EXPECT_THAT(head.note(), IsEmpty());
}

TEST_F(TiedHeadTest, OfSeveralEmbeddingsNoneIsTaken) {
  const TiedHead head = HeadOf(R"({"tie_word_embeddings": true})", {"b.embed_tokens.weight", "a.embed_tokens.weight"});
  EXPECT_THAT(head.names(), Pair("", ""));
  EXPECT_THAT(head.note(), HasSubstr("it may be any of a.embed_tokens.weight, b.embed_tokens.weight"));
}

TEST_F(TiedHeadTest, AConfigThatCannotBeReadIsANote) {
  const TiedHead head = HeadOf("<html>");
  EXPECT_THAT(head.names(), Pair("", ""));
  EXPECT_THAT(head.note(), HasSubstr("config.json is not read, so tied names are not known"));
  EXPECT_THAT(TiedHead::Of(testing::TempDir() + "/none").note(), IsEmpty());
}

}  // namespace
}  // namespace fsdp
