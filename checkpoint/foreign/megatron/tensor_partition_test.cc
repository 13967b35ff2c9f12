// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/tensor_partition.h"

#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/joined_tensor.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using enum TensorPartition;

TEST(TensorPartitionTest, FollowsFromTheNameOfTheLayer) {
  const std::vector<std::pair<std::string, TensorPartition>> expected = {
      {"embedding.word_embeddings.weight", kColumns},
      {"embedding.position_embeddings.weight", kReplicated},
      {"output_layer.weight", kColumns},
      {"decoder.layers.0.input_layernorm.weight", kReplicated},
      {"decoder.layers.0.self_attention.linear_qkv.weight", kColumns},
      {"decoder.layers.0.self_attention.linear_qkv.bias", kColumns},
      {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", kReplicated},
      {"decoder.layers.0.self_attention.q_layernorm.weight", kReplicated},
      {"decoder.layers.0.self_attention.linear_proj.weight", kRows},
      {"decoder.layers.0.self_attention.linear_proj.bias", kReplicated},
      {"decoder.layers.0.mlp.linear_fc1.weight", kColumns},
      {"decoder.layers.0.mlp.linear_fc2.weight", kRows},
      {"decoder.layers.0.mlp.linear_fc2.bias", kReplicated},
      {"decoder.layers.0.mlp.router.weight", kReplicated},
      {"decoder.layers.0.mlp.router.expert_bias", kReplicated},
      {"decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", kColumns},
      {"decoder.layers.0.mlp.experts.linear_fc2.weight11", kRows},
      {"decoder.layers.0.mlp.shared_experts.gate_weight", kReplicated},
      {"decoder.final_layernorm.bias", kReplicated},
      {"language_model.encoder.layers.0.self_attention.query_key_value.weight", kColumns},
      {"language_model.encoder.layers.0.self_attention.dense.weight", kRows},
      {"language_model.encoder.layers.0.mlp.dense_4h_to_h.bias", kReplicated},
  };
  for (const auto& [name, partition] : expected) EXPECT_EQ(PartitionOfName(name), partition) << name;
}

TEST(TensorPartitionTest, OtherNamesHaveNone) {
  for (const std::string name :
       {"decoder.layers.0.mixer.in_proj.weight", "decoder.layers.0.mlp.experts.weight1", "dense.weight", "weight",
        "decoder.layers.0.self_attention.linear_kv_down_proj.weight", "decoder.layers.0.mlp.linear_fc1.scale", ""}) {
    EXPECT_EQ(PartitionOfName(name), std::nullopt) << name;
  }
}

TEST(TensorPartitionTest, TheSecondLinearIsInTheSameModule) {
  EXPECT_EQ(SecondLinearOf("a.mlp.linear_fc1.bias"), "a.mlp.linear_fc2.weight");
  EXPECT_EQ(SecondLinearOf("a.experts.linear_fc1.weight7"), "a.experts.linear_fc2.weight7");
  EXPECT_EQ(SecondLinearOf("a.mlp.dense_h_to_4h.weight"), "a.mlp.dense_4h_to_h.weight");
  EXPECT_EQ(SecondLinearOf("a.mlp.linear_fc2.weight"), "");
}

TEST(TensorPartitionTest, PiecesCoverTheJoinedTensorOnce) {
  const Shape part = *Shape::Create({6, 4});
  for (const TensorPartition partition : {kReplicated, kColumns, kGated, kRows}) {
    for (const int ranks : {1, 3, 8}) {
      ASSERT_OK_AND_ASSIGN(const Shape joined, JoinedShape(partition, part, ranks));
      EXPECT_EQ(joined.numel(), part.numel() * (partition == kReplicated ? 1 : ranks));
      EXPECT_OK(CheckPieces(joined, PiecesOf(partition, part, ranks)));
    }
  }
}

// Rank 1's up projection, which begins in the middle of its part, is after both gates.
TEST(TensorPartitionTest, OfGatedUnitsTheGatesComeFirst) {
  const std::vector<JoinedPiece> pieces = PiecesOf(kGated, *Shape::Create({6, 4}), 2);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[3].part, 1);
  EXPECT_EQ(pieces[3].first, 12);
  EXPECT_EQ(pieces[3].box.start[0], 9);
  EXPECT_EQ(pieces[3].box.count[0], 3);
}

TEST(TensorPartitionTest, AShapeWithoutTheAxisIsRefused) {
  EXPECT_FALSE(JoinedShape(kRows, *Shape::Create({6}), 2).ok());
  EXPECT_FALSE(JoinedShape(kColumns, *Shape::Create({}), 2).ok());
  EXPECT_FALSE(JoinedShape(kGated, *Shape::Create({5, 2}), 2).ok());
  EXPECT_FALSE(JoinedShape(kColumns, *Shape::Create({int64_t{1} << 59}), 8).ok());
}

}  // namespace
}  // namespace fsdp
