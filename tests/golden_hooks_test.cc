// SPDX-License-Identifier: Apache-2.0
//
// Hooks of the gradient reduction against the real PyTorch. train_gpt has no flag for them, so the cases of
// testdata/golden/losses that name a hook are trained here, on ranks that are threads.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tests/golden_case_testutil.h"
#include "fsdp/train/batch_loader.h"
#include "fsdp/train/initial_weights.h"
#include "fsdp/train/learning_rate.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/token_data.h"
#include "fsdp/train/train_step.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using SetHook = std::function<absl::Status(FullyShardedDataParallel& model)>;

// FSDP1: a custom hook that leaves half of the mean. PyTorch's is halve_and_reduce of make_losses.py.
absl::Status HalveAndReduce(const Tensor& grad, const Tensor& output, ProcessGroup& group, Stream& stream) {
  stream.device().ops().CastDivide(grad, grad, 2.0f * static_cast<float>(group.size()), stream);
  group.ReduceScatter(grad, output, ReduceOp::kSum, stream);
  return absl::OkStatus();
}

absl::Status Halve(const Tensor& reduced, Stream& stream) {
  stream.device().ops().CastDivide(reduced, reduced, 2, stream);
  return absl::OkStatus();
}

// FSDP2: the same of every unit, by its all-reduce hook.
absl::Status HalveEveryUnit(FullyShardedDataParallel& model) {
  for (const auto& [name, module] : model.module().NamedModules()) {
    if (FsdpModule* const unit = FsdpModule::Of(*module); unit != nullptr) {
      FSDP_RETURN_IF_ERROR(unit->set_all_reduce_hook(Halve));
    }
  }
  return absl::OkStatus();
}

// The hook of the case, by make_losses.py's name.
SetHook HookOf(const GoldenCase& golden) {
  if (golden.comm_hook == "bf16_compress") {
    return [](FullyShardedDataParallel& model) { return model.RegisterCommHook(CompressCommHook(DType::kBFloat16)); };
  }
  if (golden.comm_hook == "fp16_compress") {
    return [](FullyShardedDataParallel& model) { return model.RegisterCommHook(CompressCommHook(DType::kFloat16)); };
  }
  Check(golden.comm_hook == "halve", "the hook of the case is known");
  if (OptionsOf(TrainingFlags(golden)).api == TrainApi::kFsdp2) return HalveEveryUnit;
  return [](FullyShardedDataParallel& model) { return model.RegisterCommHook({.reduce = HalveAndReduce}); };
}

// Trains as train_gpt would with `options`, with the hook of `set_hook`.
absl::StatusOr<std::vector<StepMetrics>> TrainRank(const TrainOptions& options, const SetHook& set_hook,
                                                   const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options, nullptr));
  FSDP_ASSIGN_OR_RETURN(auto model, MakeShardedModel(config, options, group, /*trace=*/nullptr));
  FSDP_RETURN_IF_ERROR(set_hook(*model));
  const auto load = [&](StateDict& wanted) {
    return LoadInitialWeights(options.init_from, BasePrefix(config), wanted, *group, {.device = &model->device()});
  };
  FSDP_RETURN_IF_ERROR(model->Restore(/*optimizer=*/nullptr, load));
  AdamW optimizer(AdamW::DecayMatricesOnly(model->parameters(), options.adamw));
  FSDP_ASSIGN_OR_RETURN(TokenData data, TokenData::FromTokenFile(options.tokens));
  const BatchLoader batches(std::move(data), {.batch_size = options.batch_size,
                                              .seq_len = options.seq_len,
                                              .grad_accum = options.grad_accum,
                                              .rank = group->rank(),
                                              .world_size = group->size()});
  FSDP_ASSIGN_OR_RETURN(const auto train_step, TrainStep::Create(*model, {&optimizer}, batches, /*trace=*/nullptr));
  std::vector<StepMetrics> steps;
  for (int64_t step = 0; step < options.learning_rate.steps; ++step) {
    const double lr = LearningRate(options.learning_rate, step);
    FSDP_RETURN_IF_ERROR(optimizer.SetHyperparameter("lr", lr));
    FSDP_ASSIGN_OR_RETURN(const StepOutcome outcome, train_step->Run(step, options.clip_limit()));
    steps.push_back({.step = step, .loss = outcome.loss, .grad_norm = outcome.grad_norm, .lr = lr});
  }
  FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
  return steps;
}

absl::StatusOr<std::vector<StepMetrics>> TrainCase(const GoldenCase& golden, const SetHook& set_hook) {
  const TrainOptions options = OptionsOf(TrainingFlags(golden));
  std::vector<StepMetrics> steps;  // rank 0's; the other ranks have the same
  FSDP_RETURN_IF_ERROR(RunRanks(*options.nproc, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    absl::StatusOr<std::vector<StepMetrics>> mine = TrainRank(options, set_hook, group);
    if (!mine.ok()) group->Abort(mine.status());
    FSDP_RETURN_IF_ERROR(mine.status());
    if (group->rank() == 0) steps = *std::move(mine);
    return absl::OkStatus();
  }));
  return steps;
}

struct HookCase {
  std::string name;
  Distance tolerance;
};

class GoldenHooksTest : public testing::TestWithParam<HookCase> {};

TEST_P(GoldenHooksTest, EveryStepMatchesPyTorchAndNoneWithoutTheHookDoes) {
  const auto& [name, tolerance] = GetParam();
  const GoldenCase golden = ReadGoldenCase(name);
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> steps, TrainCase(golden, HookOf(golden)));
  const Distance distance = DistanceTo(golden, steps);
  std::printf("%s: %s\n", name.c_str(), distance.ToString().c_str());
  EXPECT_TRUE(distance.IsWithin(tolerance)) << distance.ToString() << ", asked: " << tolerance.ToString();

  const auto no_hook = [](FullyShardedDataParallel&) { return absl::OkStatus(); };
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> without, TrainCase(golden, no_hook));
  const Distance ignored = DistanceTo(golden, without);
  std::printf("%s without its hook: %s\n", name.c_str(), ignored.ToString().c_str());
  EXPECT_FALSE(ignored.IsWithin(tolerance)) << "a hook that is ignored passes";
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenHooksTest,
                         testing::Values(HookCase{"gpt2_bf16_compress_w2", {1e-6, 1e-4, 1e-6, 1e-6}},
                                         HookCase{"gpt2_fp16_compress_w2", {1e-6, 1e-4, 1e-6, 1e-6}},
                                         HookCase{"gpt2_reduce_halved_w2", {1e-6, 3e-5, 1e-6, 1e-6}},
                                         HookCase{"gpt2_fsdp2_reduce_halved_w2", {1e-6, 3e-5, 1e-6, 1e-6}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
