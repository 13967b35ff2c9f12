// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/mixed_net_testutil.h"

#include <torch/optim.h>

#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/libtorch/tensor_bridge.h"
#include "fsdp/libtorch/unit_call.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

constexpr int kSteps = 3;

// SGD, not AdamW: an update in proportion to the gradient shows every difference in size.
torch::optim::SGDOptions Options() { return torch::optim::SGDOptions(0.5).momentum(0.9); }

}  // namespace

MixedBlockImpl::MixedBlockImpl() {
  norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({16})));
  in = register_module("in", nn::Linear(16, 24));
  gate = register_module("gate", nn::Linear(16, 24));
  out = register_module("out", nn::Linear(24, 16));
}

at::Tensor MixedBlockImpl::Compute(const at::Tensor& x, const at::Tensor& low) {
  // Three readers of the input, of which two get the cast one.
  return x + out(torch::gelu(in(norm(low))) * gate(low));
}

MixedNetImpl::MixedNetImpl() {
  stem = register_module("stem", nn::Linear(16, 16));
  for (int i = 0; i < 2; ++i) blocks->push_back(MixedBlock());
  register_module("blocks", blocks);
  head = register_module("head", nn::Linear(16, 5));
}

at::Tensor MixedNetImpl::Compute(const at::Tensor& x, const BlockForward& block) {
  at::Tensor y = stem(x);
  for (const auto& module : *blocks) y = block(*module->as<MixedBlock>(), y);
  return head(y);
}

at::Tensor MixedNetImpl::forward(const at::Tensor& x) {
  return Compute(x, [this](MixedBlockImpl& block, const at::Tensor& y) {
    return calls_units ? CallUnit(block, y) : block.forward(y);
  });
}

std::shared_ptr<MixedNetImpl> MakeMixedNet(c10::Device device) {
  // All threads draw from one default generator.
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  torch::manual_seed(5);
  auto net = std::make_shared<MixedNetImpl>();
  net->to(device);
  return net;
}

at::Tensor MixedInput(int step, c10::Device device) {
  return at::randn({12, 16}, at::make_generator<at::CPUGeneratorImpl>(1000 + step)).to(device);
}

TorchValues TrainMixedPlain(const MixedNetImpl::BlockForward& block, c10::Device device) {
  at::set_num_threads(1);
  // The float32 weights that SGD updates, and the net that computes with their rounded values.
  const auto master = MakeMixedNet(device), low = MakeMixedNet(device);
  low->blocks->to(at::kBFloat16);
  const std::vector<at::Tensor> weights = master->parameters(), rounded = low->parameters();
  torch::optim::SGD optimizer(weights, Options());
  for (int step = 0; step < kSteps; ++step) {
    low->zero_grad();
    {
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < weights.size(); ++i) rounded[i].copy_(weights[i]);
    }
    low->Compute(MixedInput(step, device), block).square().mean().backward();
    // The root's gradients are float32 already; the blocks' are widened.
    for (size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = rounded[i].grad().to(at::kFloat);
    optimizer.step();
  }
  TorchValues values;
  for (const auto& item : master->named_parameters()) values[item.key()] = item.value().detach().cpu();
  return values;
}

absl::StatusOr<TorchValues> TrainMixedSharded(
    const std::function<absl::StatusOr<std::unique_ptr<ShardedModule>>(MixedNetImpl&, std::shared_ptr<ProcessGroup>)>&
        shard,
    bool calls_units, const RunTestRanks& run) {
  TorchValues first;
  FSDP_RETURN_IF_ERROR(run(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    // Both ranks have all rows, so rank 0 has the result of all.
    const bool is_first = group->rank() == 0;
    const c10::Device device = TorchDeviceOf(*group->device());
    const auto net = MakeMixedNet(device);
    net->calls_units = calls_units;
    FSDP_ASSIGN_OR_RETURN(const auto sharded, shard(*net, std::move(group)));
    torch::optim::SGD optimizer(sharded->LocalParameters(), Options());
    FSDP_RETURN_IF_ERROR(Caught([&] {
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const at::Tensor y = sharded->Forward([&] { return net->forward(MixedInput(step, device)); });
        y.square().mean().backward();
        optimizer.step();
      }
      return absl::OkStatus();
    }));
    FSDP_ASSIGN_OR_RETURN(TorchValues values, FullValues(*sharded));
    if (is_first) first = std::move(values);
    return absl::OkStatus();
  }));
  return first;
}

}  // namespace fsdp
