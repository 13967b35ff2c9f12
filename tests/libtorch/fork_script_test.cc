// SPDX-License-Identifier: Apache-2.0
//
// A script from Python that runs two children by torch.jit.fork (make_golden.py).
#include <ATen/Parallel.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstddef>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/script_forward.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/tests/libtorch/models.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Weights = std::map<std::string, at::Tensor>;

torch::jit::Module LoadScript() { return torch::jit::load("tests/libtorch/testdata/fork_script.pt"); }

template <typename Forward>
void Step(torch::optim::Optimizer& optimizer, int step, const Forward& forward) {
  optimizer.zero_grad();
  at::Tensor y = forward(Uniform(step, {6, 8}));
  y.square().mean().backward();
  optimizer.step();
}

Weights TrainAlone() {
  torch::jit::Module net = LoadScript();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, 0.5);
  for (int step = 0; step < 3; ++step) {
    Step(optimizer, step, [&](const at::Tensor& x) { return net.forward({x}).toTensor(); });
  }
  Weights weights;
  for (const auto& parameter : net.named_parameters()) weights[parameter.name] = parameter.value.detach();
  return weights;
}

TEST(ForkScriptTest, ForksOnTheCallingThreadTrainAsLibTorchAlone) {
  at::set_num_threads(1);
  const Weights alone = TrainAlone();
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    torch::jit::Module net = LoadScript();
    FSDP_ASSIGN_OR_RETURN(const auto sharded,
                          Shard(net, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Branch"}))}));
    torch::optim::SGD optimizer(sharded->LocalParameters(), 0.5);
    for (int step = 0; step < 3; ++step) {
      Step(optimizer, step, [&](const at::Tensor& x) {
        return sharded->Forward([&] { return ForwardOnThisThread(net, {x}).toTensor(); });
      });
    }
    FSDP_ASSIGN_OR_RETURN(const auto whole, sharded->SummonFullParams());
    for (const auto& parameter : net.named_parameters()) {
      EXPECT_TRUE(at::equal(parameter.value, alone.at(parameter.name))) << parameter.name;
    }
    return whole->Close();
  }));
}

// Returns when every fork that was started has ended: all threads of their pool meet here. A forward that threw may
// leave forks behind, which use its parameters during the next one.
void WaitForForks() {
  static std::mutex mutex;  // two calls at a time would share the threads between them
  const std::lock_guard<std::mutex> lock(mutex);
  const auto threads = static_cast<std::ptrdiff_t>(at::get_num_interop_threads());
  const auto met = std::make_shared<std::latch>(threads + 1);
  for (std::ptrdiff_t i = 0; i < threads; ++i) at::launch([met] { met->arrive_and_wait(); });
  met->arrive_and_wait();
}

TEST(ForkScriptTest, ForksOnOtherThreadsAreRefusedByName) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    torch::jit::Module net = LoadScript();
    FSDP_ASSIGN_OR_RETURN(const auto sharded,
                          Shard(net, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Branch"}))}));
    std::string message;
    try {
      sharded->Forward([&] { return net.forward({Uniform(0, {6, 8})}).toTensor(); });
    } catch (const std::exception& error) {
      message = error.what();
    }
    // The fork's own error, or Forward's, whichever is thrown first.
    EXPECT_THAT(message, testing::AnyOf(testing::HasSubstr("ForwardOnThisThread"),
                                        testing::HasSubstr("is sharded and its unit")));
    // It can be used afterwards.
    WaitForForks();
    const at::Tensor y = sharded->Forward([&] { return ForwardOnThisThread(net, {Uniform(0, {6, 8})}).toTensor(); });
    torch::jit::Module plain = LoadScript();
    EXPECT_TRUE(at::equal(y, plain.forward({Uniform(0, {6, 8})}).toTensor()));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
