// SPDX-License-Identifier: Apache-2.0
//
// train_gpt against the real PyTorch: loss, gradient norm and learning rate at every step of the cases in
// testdata/golden/losses. docs/testing.md says where they come from, and why two of them need a second measure.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/golden_case.h"
#include "fsdp/tests/train_gpt_run.h"
#include "fsdp/train/metrics.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The relative difference between two right answers: sums are taken in other orders, and bfloat16 rounds elsewhere. A
// few times what is measured (docs/testing.md), in the loss of bfloat16 twice: less than what an ignored --param_dtype
// would change. No ignored option is told by the norm.
struct Tolerance {
  double loss = 1e-6;
  double grad_norm = 3e-5;
};

// In two steps of llama_bf16_w2 two thirds of the gradient are that of one token, "y", whose embedding is a few
// roundings of bfloat16 long: PyTorch itself moves them by 2.4e-2 and 7e-3 when only the mean within its RMS norms is
// rounded to another last bit of float32, and by 3e-2 with its fused attention.
bool MagnifiesRounding(const GoldenCase& golden, size_t step) {
  return golden.name == "llama_bf16_w2" && (step == 15 || step == 31);
}

Tolerance ToleranceOf(const GoldenCase& golden, size_t step) {
  const bool low = std::find(golden.flags.begin(), golden.flags.end(), "--param_dtype=bfloat16") != golden.flags.end();
  if (!low) return Tolerance{};
  // A float32 run of the same flags leaves the two cases of GPT-2 by 3.8e-4 and 4.0e-4 in the loss, so that an ignored
  // --param_dtype shows. An ignored --reduce_dtype does not: mixed_precision_test.cc looks at one reduced gradient.
  if (MagnifiesRounding(golden, step)) return Tolerance{3e-4, 5e-2};
  if (golden.name == "gpt2_bf16_w2") return Tolerance{3e-4, 2e-3};
  return Tolerance{3e-4, golden.name == "llama_bf16_w2" ? 1e-2 : 5e-3};
}

// The steps of the case as train_gpt trains them.
std::vector<StepMetrics> TrainCase(const GoldenCase& golden) {
  const std::string metrics = NewDirectory() + "/metrics.jsonl";
  const Flags model = {"--config=" + Golden(golden.model + "/config.json"),
                       "--init_from=" + Golden(golden.model),
                       "--tokens=" + Golden("tokens.u16"),
                       "--model=" + golden.model.substr(0, golden.model.find('_')),
                       "--device=cpu",
                       "--resume=none"};
  const auto run = Train(model + golden.flags + Flags{"--metrics=" + metrics});
  EXPECT_OK(run);
  if (!run.ok()) return {};
  EXPECT_EQ(run->exit_status, 0) << run->output;
  return ReadMetrics(metrics).value_or(std::vector<StepMetrics>());
}

double Distance(double ours, double golden) { return std::abs(ours - golden) / golden; }

class GoldenLossesTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLossesTest, EveryStepMatchesPyTorch) {
  const GoldenCase golden = ReadGoldenCase(GetParam());
  const std::vector<StepMetrics> steps = TrainCase(golden);
  ASSERT_EQ(steps.size(), golden.loss.size());
  Tolerance worst = {0, 0};
  for (size_t s = 0; s < steps.size(); ++s) {
    const Tolerance tolerance = ToleranceOf(golden, s);
    worst.loss = std::max(worst.loss, Distance(steps[s].loss, golden.loss[s]));
    worst.grad_norm = std::max(worst.grad_norm, Distance(steps[s].grad_norm, golden.grad_norm[s]));
    EXPECT_LE(Distance(steps[s].loss, golden.loss[s]), tolerance.loss) << "step " << s;
    EXPECT_LE(Distance(steps[s].grad_norm, golden.grad_norm[s]), tolerance.grad_norm) << "step " << s;
    EXPECT_LE(Distance(steps[s].lr, golden.lr[s]), 1e-6) << "step " << s;
  }
  std::printf("%s: loss within %.1e, grad_norm within %.1e\n", GetParam().c_str(), worst.loss, worst.grad_norm);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLossesTest,
                         testing::Values("gpt2_bare_a4", "gpt2_full_shard_w4", "gpt2_full_shard_w2_a2",
                                         "gpt2_uneven_full_shard_w3", "gpt2_hybrid_w4_k2", "gpt2_bf16_w2",
                                         "gpt2_bf16_reduce_bf16_w2", "llama_bare_a3", "llama_full_shard_w3",
                                         "llama_bf16_w2", "gpt2_fsdp2_w4", "gpt2_uneven_fsdp2_w3"),
                         [](const auto& info) { return info.param; });

// These options change memory, and nothing else. The gradient norm is summed unit by unit, so its last bit may move.
TEST(SavingMemoryTest, OffloadAndRecomputationChangeNoLoss) {
  for (const std::string api : {"fsdp1", "fsdp2"}) {
    std::vector<std::map<int64_t, StepMetrics>> runs;
    for (const Flags& flags : {Flags{}, Flags{"--cpu_offload", "--pin_memory"}, Flags{"--activation_checkpointing"}}) {
      const std::string metrics = NewDirectory() + "/metrics.jsonl";
      const Flags common = {"--api=" + api, "--steps=4", "--max_grad_norm=0", "--metrics=" + metrics};
      ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(SmallRun() + common + flags));
      ASSERT_EQ(run.exit_status, 0) << run.output;
      ASSERT_OK_AND_ASSIGN(runs.emplace_back(), MetricsByStep(metrics));
      ASSERT_EQ(runs.back().size(), 4u);
      for (const auto& [step, measured] : runs.back()) EXPECT_EQ(measured.loss, runs[0].at(step).loss) << step;
    }
  }
}

// Two curves pass through steps that magnify a rounding of the weights a thousandfold and more: gpt2_full_shard_w3 at
// step 45, gpt2_full_shard_w2_clip_cosine from step 30 on, where the loss rises to 10 and falls again. No two float32
// implementations agree there, so the tolerance widens with how far rounding alone moves the float64 curve.
class UnstableGoldenLossesTest : public testing::TestWithParam<std::string> {};

TEST_P(UnstableGoldenLossesTest, EveryStepMatchesPyTorchAsWellAsRoundingLetsIt) {
  constexpr double kRoundings = 20;  // a step of training rounds far more than the weights
  constexpr int kSeeds = 2;
  const GoldenCase golden = ReadGoldenCase(GetParam());
  const std::vector<StepMetrics> steps = TrainCase(golden);
  ASSERT_EQ(steps.size(), golden.loss.size());
  const std::vector<Float64Outcome> truth = TrainInFloat64(golden);
  std::vector<std::vector<Float64Outcome>> rounded;
  for (int seed = 1; seed <= kSeeds; ++seed) rounded.push_back(TrainInFloat64(golden, seed));

  Tolerance moved = {0, 0};  // by rounding, up to this step
  size_t strict_steps = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const auto& run : rounded) {
      moved.loss = std::max(moved.loss, Distance(run[s].loss, truth[s].loss));
      moved.grad_norm = std::max(moved.grad_norm, Distance(run[s].grad_norm, truth[s].grad_norm));
    }
    const Tolerance tolerance = {std::max(1e-6, kRoundings * moved.loss), std::max(1e-4, kRoundings * moved.grad_norm)};
    strict_steps += tolerance.loss == 1e-6 && tolerance.grad_norm == 1e-4;
    EXPECT_LE(Distance(steps[s].loss, golden.loss[s]), tolerance.loss) << "step " << s;
    EXPECT_LE(Distance(steps[s].grad_norm, golden.grad_norm[s]), tolerance.grad_norm) << "step " << s;
    EXPECT_LE(Distance(steps[s].lr, golden.lr[s]), 1e-6) << "step " << s;
    std::printf(
        "%2zu  loss: ours %.1e, PyTorch %.1e, rounding %.1e   grad_norm: ours %.1e, PyTorch %.1e, rounding %.1e\n", s,
        Distance(steps[s].loss, truth[s].loss), Distance(golden.loss[s], truth[s].loss), moved.loss,
        Distance(steps[s].grad_norm, truth[s].grad_norm), Distance(golden.grad_norm[s], truth[s].grad_norm),
        moved.grad_norm);
  }
  EXPECT_GE(strict_steps, 25u);  // the measure must not excuse what is stable
}

INSTANTIATE_TEST_SUITE_P(Cases, UnstableGoldenLossesTest,
                         testing::Values("gpt2_full_shard_w3", "gpt2_full_shard_w2_clip_cosine"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp
