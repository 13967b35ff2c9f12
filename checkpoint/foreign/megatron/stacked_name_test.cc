// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/stacked_name.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(StackedNameTest, LayersAndExpertsGetTheirNumbers) {
  const StackedName layer = StackedName::Of("decoder.layers.mlp.linear_fc1.weight");
  EXPECT_EQ(layer.axes(), 1);
  EXPECT_EQ(layer.At({3}), "decoder.layers.3.mlp.linear_fc1.weight");
  EXPECT_EQ(layer.Stack(0), "decoder.layers");
  const StackedName expert = StackedName::Of("decoder.layers.mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(expert.axes(), 2);
  EXPECT_EQ(expert.At({3, 1}), "decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight");
  EXPECT_EQ(expert.Stack(1), "decoder.layers.mlp.experts.experts");
  // Layers that differ are not stacked, but their experts are.
  const StackedName mixed = StackedName::Of("decoder.layers.3.mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(mixed.axes(), 1);
  EXPECT_EQ(mixed.At({1}), "decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight");
}

TEST(StackedNameTest, OtherNamesStay) {
  for (const std::string name :
       {"decoder.layers.3.mlp.linear_fc1.weight", "embedding.word_embeddings.weight", "layers", "decoder.layers.",
        "decoder.sublayers.weight", "decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight",
        "decoder.layers.3.mlp.shared_experts.linear_fc1.weight", ""}) {
    const StackedName stacked = StackedName::Of(name);
    EXPECT_EQ(stacked.axes(), 0) << name;
    EXPECT_EQ(stacked.At({}), name);
  }
}

TEST(StackedNameTest, TheKeyOfANameIsTheInverse) {
  for (const std::string key :
       {"decoder.layers.mlp.linear_fc1.weight", "decoder.layers.mlp.experts.experts.linear_fc1.weight",
        "decoder.final_layernorm.weight", "layers.a.layers.b"}) {
    const StackedName stacked = StackedName::Of(key);
    const std::vector<int64_t> at = std::vector<int64_t>{12, 345};
    std::vector<int64_t> found;
    EXPECT_EQ(StackedKey(stacked.At(absl::MakeConstSpan(at).first(stacked.axes())), true, found), key);
    EXPECT_EQ(found, std::vector<int64_t>(at.begin(), at.begin() + stacked.axes()));
  }
  std::vector<int64_t> at;
  EXPECT_EQ(StackedKey("decoder.layers.01.weight", true, at), "decoder.layers.01.weight");  // would come back as "1"
  EXPECT_TRUE(at.empty());
  EXPECT_EQ(StackedKey("decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight", false, at),
            "decoder.layers.3.mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(at, std::vector<int64_t>{1});
}

}  // namespace
}  // namespace fsdp
