// SPDX-License-Identifier: Apache-2.0
//
// For tests of units in bfloat16 within a root in float32: a net whose blocks read their input several times, and the
// same training of it by plain LibTorch, with the casts written out.
#ifndef FSDP_LIBTORCH_MIXED_NET_TESTUTIL_H_
#define FSDP_LIBTORCH_MIXED_NET_TESTUTIL_H_

#include <torch/nn.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"

namespace fsdp {

struct MixedBlockImpl : torch::nn::Module {
  MixedBlockImpl();
  // x + out(gelu(in(norm(x))) * gate(x)), with `low` as the input of the two readers of x.
  at::Tensor Compute(const at::Tensor& x, const at::Tensor& low);
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return Compute(x, x);
  }
  int runs = 0;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear in{nullptr}, gate{nullptr}, out{nullptr};
};
TORCH_MODULE(MixedBlock);

// A stem, two blocks, a head; inputs are [12, 16].
struct MixedNetImpl : torch::nn::Module {
  using BlockForward = std::function<at::Tensor(MixedBlockImpl& block, const at::Tensor& x)>;

  MixedNetImpl();
  at::Tensor Compute(const at::Tensor& x, const BlockForward& block);
  // With CallUnit, or the plain call.
  at::Tensor forward(const at::Tensor& x);
  bool calls_units = true;
  torch::nn::Linear stem{nullptr}, head{nullptr};
  torch::nn::ModuleList blocks;
};

// The same values at each call, from any thread.
std::shared_ptr<MixedNetImpl> MakeMixedNet(c10::Device device = at::kCPU);
at::Tensor MixedInput(int step, c10::Device device = at::kCPU);

// Parameters after three steps of SGD: of a plain net with blocks in bfloat16, rounded again before each step, with
// `block` as a block's forward; and of a sharded net on two ranks that both have all rows.
TorchValues TrainMixedPlain(const MixedNetImpl::BlockForward& block, c10::Device device = at::kCPU);
absl::StatusOr<TorchValues> TrainMixedSharded(
    const std::function<absl::StatusOr<std::unique_ptr<ShardedModule>>(MixedNetImpl&, std::shared_ptr<ProcessGroup>)>&
        shard,
    bool calls_units, const RunTestRanks& run = RunHostRanks);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_MIXED_NET_TESTUTIL_H_
