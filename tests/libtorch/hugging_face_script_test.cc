// SPDX-License-Identifier: Apache-2.0
//
// A GPT-2 of Hugging Face that Python traced and saved (make_golden.py), trained sharded and by plain LibTorch: the
// same losses and weights, bit for bit.
#include <torch/script.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/tests/libtorch/models.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 6, kVocab = 61, kRows = 4, kLength = 16;

torch::jit::Module LoadScript() { return torch::jit::load("tests/libtorch/testdata/gpt2_script.pt"); }

at::Tensor LossOf(torch::jit::Module& gpt2) {
  const at::Tensor tokens = Integers(3, kVocab, {kRows, kLength}), targets = tokens.roll(-1, 1);
  const at::Tensor logits = gpt2.forward({tokens}).toTensor();
  return torch::nn::functional::cross_entropy(logits.reshape({-1, kVocab}), targets.reshape(-1));
}

torch::optim::AdamWOptions Options() { return torch::optim::AdamWOptions(1e-2).weight_decay(0.1); }

struct Result {
  std::vector<float> losses;
  std::map<std::string, at::Tensor> weights;
};

Result TrainAlone() {
  torch::jit::Module gpt2 = LoadScript();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : gpt2.parameters()) parameters.push_back(parameter);
  torch::optim::AdamW optimizer(parameters, Options());
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = LossOf(gpt2);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(loss.item<float>());
  }
  for (const auto& parameter : gpt2.named_parameters()) result.weights[parameter.name] = parameter.value.detach();
  return result;
}

// Each rank has all rows, so the mean of the ranks' gradients equals each rank's gradient.
absl::Status TrainSharded(std::shared_ptr<ProcessGroup> group, Result& result) {
  at::set_num_threads(1);
  torch::jit::Module gpt2 = LoadScript();
  FSDP_ASSIGN_OR_RETURN(const auto sharded,
                        Shard(gpt2, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"GPT2Block"}))}));
  FSDP_ASSIGN_OR_RETURN(
      const auto optimizer,
      TorchOptimizer::Create(*sharded, std::make_unique<torch::optim::AdamW>(sharded->LocalParameters(), Options())));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = sharded->Forward([&] { return LossOf(gpt2); });
    loss.backward();
    FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
    optimizer->ZeroGrad();
    result.losses.push_back(loss.item<float>());
  }
  FSDP_ASSIGN_OR_RETURN(const auto whole, sharded->SummonFullParams());
  for (const auto& parameter : gpt2.named_parameters()) {
    result.weights[parameter.name] = parameter.value.detach().clone();
  }
  return whole->Close();
}

TEST(HuggingFaceScriptTest, ShardedTrainingHasTheBitsOfLibTorchAlone) {
  at::set_num_threads(1);
  const Result alone = TrainAlone();
  ASSERT_EQ(alone.losses.size(), kSteps);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (const int ranks : {1, 2, 4}) {
    std::vector<Result> results(ranks);
    ASSERT_OK(RunRanks(
        ranks, [&](std::shared_ptr<ProcessGroup> group) { return TrainSharded(group, results[group->rank()]); }));
    for (const Result& sharded : results) {
      EXPECT_EQ(sharded.losses, alone.losses) << ranks << " ranks";
      ASSERT_EQ(sharded.weights.size(), alone.weights.size());
      for (const auto& [name, weight] : alone.weights) {
        EXPECT_TRUE(at::equal(sharded.weights.at(name), weight)) << name << " on " << ranks << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
