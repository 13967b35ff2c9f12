// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/model_work.h"

#include "fsdp/base/status_matchers.h"
#include "fsdp/tools/simulation/bandwidth.h"
#include "fsdp/tools/simulation/simulated_job.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

// One block of width 8 with 2 query heads that share one head of keys and values, an MLP of 16, 32 tokens.
LlamaConfig SmallLlama() {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 8;
  config.intermediate_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  return config;
}

int64_t Numel(const ModelUnit& unit) {
  int64_t numel = 0;
  for (const ShardLayout::Entry& parameter : unit.parameters) numel += parameter.shape.numel();
  return numel;
}

TEST(ModelWorkTest, UnitsHoldTheParametersOfTheModelOnce) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelUnit> units, ModelWork(SmallLlama(), {}));
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[1].name, "model.layers.0");
  EXPECT_EQ(Numel(units[1]), 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8);
  EXPECT_EQ(Numel(units[0]), 2 * 32 * 8 + 8);
  LlamaConfig tied = SmallLlama();
  tied.tie_word_embeddings = true;
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelUnit> of_tied, ModelWork(tied, {}));
  EXPECT_EQ(Numel(of_tied[0]), 32 * 8 + 8);
}

TEST(ModelWorkTest, A405BModelIsPlannedWithoutItsMemory) {
  ASSERT_OK_AND_ASSIGN(const CausalLmConfig config, ReadModelConfig("llama-3.1-405b"));
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelUnit> units, ModelWork(config, {}));
  int64_t numel = 0;
  for (const ModelUnit& unit : units) numel += Numel(unit);
  EXPECT_EQ(numel, 405853388800);  // the number on its model card
}

TEST(ModelWorkTest, FlopsAreTwoForEachElementOfAMatrixAndToken) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelUnit> units, ModelWork(SmallLlama(), {.batch_size = 3, .seq_len = 4}));
  const double matrices = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16;
  EXPECT_THAT(units[1].forward.matmul_flops, DoubleEq(2 * matrices * 12));
  EXPECT_THAT(units[1].backward.matmul_flops, DoubleEq(4 * matrices * 12));
  EXPECT_THAT(units[1].forward.attention_flops, DoubleEq(2 * 4 * 8 * 12));
  EXPECT_THAT(units[1].backward.attention_flops, DoubleEq(5 * 4 * 8 * 12));
  EXPECT_THAT(units[0].forward_after_inner.matmul_flops, DoubleEq(2 * 32 * 8 * 12));
  EXPECT_THAT(units[0].forward.matmul_flops, DoubleEq(0));
}

// 12 tokens, of which a chunk of 5 has 3: 32 logits each in 2, 4 and 4 bytes.
TEST(ModelWorkTest, LossChunksKeepTheLogitsOfOneChunkAndTheGradientOfTheHead) {
  const auto root = [](int64_t loss_chunks) {
    return ModelWork(SmallLlama(), {.batch_size = 3, .seq_len = 4, .loss_chunks = loss_chunks}).value()[0];
  };
  const ModelUnit all = root(0), chunks = root(5);
  EXPECT_EQ(all.kept_bytes - chunks.kept_bytes, (12 - 3) * 32 * (2 + 4));
  EXPECT_EQ(all.transient_bytes - chunks.transient_bytes, (12 - 3) * 32 * 4 - 8 * 32 * 4);
  EXPECT_THAT(chunks.backward.traffic_bytes - all.backward.traffic_bytes, DoubleEq(5 * 2 * 8 * 32 * 4));
  EXPECT_THAT(ModelWork(SmallLlama(), {.loss_chunks = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loss_chunks is -1")));
}

TEST(ModelWorkTest, CheckpointingTradesMemoryForWork) {
  const auto of = [](Checkpointing checkpointing) {
    return ModelWork(SmallLlama(), {.seq_len = 4, .checkpointing = checkpointing}).value();
  };
  const auto none = of(Checkpointing::kNone), op = of(Checkpointing::kSelectiveOp);
  const auto layer = of(Checkpointing::kSelectiveLayer), full = of(Checkpointing::kFull);
  // Keys, the output of attention and one matrix of the MLP are computed again.
  EXPECT_THAT(op[1].backward.matmul_flops - none[1].backward.matmul_flops, DoubleEq(2 * (8 * 4 + 8 * 8 + 8 * 16) * 4));
  EXPECT_THAT(op[1].recompute.matmul_flops, DoubleEq(0));
  EXPECT_THAT(full[1].recompute.matmul_flops, DoubleEq(full[1].forward.matmul_flops));
  EXPECT_THAT(layer[1].recompute.matmul_flops, DoubleEq(0));
  EXPECT_THAT(layer[2].recompute.matmul_flops, DoubleEq(layer[2].forward.matmul_flops));
  EXPECT_GT(none[1].kept_bytes, op[1].kept_bytes);
  EXPECT_GT(op[1].kept_bytes, full[1].kept_bytes);
  EXPECT_EQ(full[1].kept_bytes, 4 * 8 * 2);
}

TEST(ModelWorkTest, FusedKernelsAndAttentionMoveFewerBytes) {
  const auto eager = ModelWork(SmallLlama(), {.kernels = KernelStyle::kEager}).value();
  const auto fused = ModelWork(SmallLlama(), {.kernels = KernelStyle::kFused}).value();
  const auto scores = ModelWork(SmallLlama(), {.fused_attention = false}).value();
  EXPECT_GT(eager[1].forward.traffic_bytes, fused[1].forward.traffic_bytes);
  EXPECT_GT(scores[1].forward.traffic_bytes, fused[1].forward.traffic_bytes);
  EXPECT_GT(scores[1].kept_bytes, fused[1].kept_bytes);
}

TEST(ModelWorkTest, ASequenceThatTheModelDoesNotTakeIsRefused) {
  ASSERT_OK_AND_ASSIGN(const CausalLmConfig gpt2, ReadModelConfig("gpt2-124m"));
  EXPECT_THAT(ModelWork(gpt2, {.seq_len = 2048}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("seq_len is 2048, wanted at most 1024, the model's n_positions")));
  EXPECT_THAT(ModelWork(gpt2, {.batch_size = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_size is 0")));
}

TEST(BandwidthTest, IsANumberWithAUnit) {
  EXPECT_EQ(ParseBandwidth("400gbit").value(), 50e9);
  EXPECT_EQ(ParseBandwidth("2.5GB/s").value(), 2.5e9);
  for (const char* wrong : {"", "400", "gbit", "-1gbit", "0gbit", "1.2.3gbit", "1e999gbit", "4 gbit", "4Gbit"}) {
    EXPECT_THAT(ParseBandwidth(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a number above 0 with a unit")))
        << wrong;
  }
}

TEST(DeviceModelTest, PresetsAreListedAndKnowTheirPrecisions) {
  EXPECT_OK(DevicePreset("h100", ComputePrecision::kFloat8));
  EXPECT_THAT(DevicePreset("a100", ComputePrecision::kFloat8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device a100 has no float8")));
  EXPECT_THAT(DevicePreset("tpu", ComputePrecision::kBFloat16),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no device \"tpu\"; there are a100, h100")));
  EXPECT_THAT(ParseComputePrecision("float64"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected float32, bfloat16 or float8")));
}

}  // namespace
}  // namespace fsdp
