// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing of sharded modules of LibTorch, by ShardedModule::Checkpoint and by the option.
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/called_module.h"
#include "fsdp/libtorch/mixed_net_testutil.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Checkpoint gives the same bits with less memory, for one unit or several, and for units that recompute within others.
TEST(ShardedModuleRecomputeTest, ActivationCheckpointingHasTheSameBits) {
  const auto run = [](bool checkpoint, int blocks_a_part, bool fsdp2, int64_t* saved) {
    TorchValues values;
    EXPECT_OK(RunRanks(2, [&, checkpoint, blocks_a_part](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      at::set_num_threads(1);
      const TestModel model = MakeTestModel("transformer_encoder");
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = fsdp2}));
      auto layers = std::static_pointer_cast<torch::nn::Module>(model.module->named_children()["encoder"])
                        ->named_children()["layers"];
      std::vector<std::shared_ptr<torch::nn::TransformerEncoderLayerImpl>> blocks;
      for (const auto& child : layers->children()) {
        blocks.push_back(std::dynamic_pointer_cast<torch::nn::TransformerEncoderLayerImpl>(child));
      }
      torch::optim::SGD optimizer(sharded->LocalParameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      FSDP_RETURN_IF_ERROR(Caught([&] {
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const at::Tensor y = sharded->Forward([&] {
            at::Tensor x = model.input(step);
            for (size_t i = 0; i < blocks.size(); i += blocks_a_part) {
              const auto part = [&blocks, i, blocks_a_part](const at::Tensor& in) {
                at::Tensor out = in;
                for (size_t k = i; k < std::min(blocks.size(), i + blocks_a_part); ++k) out = blocks[k]->forward(out);
                return out;
              };
              x = checkpoint ? sharded->Checkpoint(part, x) : part(x);
            }
            return x;
          });
          y.square().mean().backward();
          optimizer.step();
        }
        return absl::OkStatus();
      }));
      if (saved != nullptr && group->rank() == 0) *saved = sharded->TakePeakBoundBytes();
      const bool is_first = group->rank() == 0;
      FSDP_ASSIGN_OR_RETURN(TorchValues mine, FullValues(*sharded));
      if (is_first) values = std::move(mine);
      return absl::OkStatus();
    }));
    return values;
  };
  for (const bool fsdp2 : {false, true}) {
    int64_t without = 0, with = 0;
    const TorchValues wanted = run(false, 1, fsdp2, &without);
    ASSERT_FALSE(wanted.empty());
    EXPECT_EQ(LargestDifference(wanted, run(true, 1, fsdp2, &with)), 0);
    EXPECT_EQ(with, without);
    EXPECT_EQ(LargestDifference(wanted, run(true, 2, fsdp2, nullptr)), 0);
  }
}

// FSDP1: blocks that recompute, with units inside that do not.
absl::StatusOr<std::unique_ptr<ShardedModule>> ShardNested1(torch::nn::Module& net, std::shared_ptr<ProcessGroup> group,
                                                            bool recomputes) {
  FsdpOptions options{.auto_wrap_policy =
                          CustomWrapPolicy([recomputes](Module& module) -> std::optional<UnitOverrides> {
                            if (module.type_name() == "Linear") return UnitOverrides{};
                            if (module.type_name() != "MixedBlock") return std::nullopt;
                            return UnitOverrides{.activation_checkpointing = recomputes};
                          })};
  return Shard(net, std::move(group), options);
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardNet(torch::nn::Module& net, std::shared_ptr<ProcessGroup> group,
                                                        const std::vector<std::string>& units, bool fsdp2,
                                                        bool recomputes) {
  const ModulePredicate is_unit = [units](const Module& module) {
    return std::find(units.begin(), units.end(), module.type_name()) != units.end();
  };
  if (!fsdp2) {
    return Shard(net, std::move(group),
                 {.auto_wrap_policy = LambdaWrapPolicy(is_unit), .activation_checkpointing = recomputes});
  }
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(net)));
  // Inner units as they are, blocks with the option.
  for (const auto& [name, module] : mirror->NamedModules()) {
    if (module->type_name() != "Linear" || name.find("blocks") == std::string::npos || !is_unit(*module)) continue;
    FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, FullyShardOptions()).status());
  }
  for (const char* block : {"blocks.0", "blocks.1"}) {
    Module& module = *mirror->Find(block);
    FSDP_RETURN_IF_ERROR(FullyShard(module, mesh, {.activation_checkpointing = recomputes}).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, FullyShardOptions()).status());
  return ShardedModule::FromFullyShard(std::move(mirror));
}

int RunsOf(const MixedNetImpl& net) {
  int runs = 0;
  for (const auto& block : *net.blocks) runs += block->as<MixedBlock>()->runs;
  return runs;
}

// The option, by CallUnit: each block runs twice a step, and the bits are those without.
TEST(ShardedModuleRecomputeTest, UnitsWithTheOptionRunAgainInBackwardWhereTheyAreCalled) {
  const std::vector<std::string> blocks = {"MixedBlock"}, nested = {"MixedBlock", "Linear"};
  for (const bool fsdp2 : {false, true}) {
    for (const auto& units : {blocks, nested}) {
      SCOPED_TRACE(testing::Message() << "FSDP" << (fsdp2 ? 2 : 1) << ", units of " << units.size() << " classes");
      TorchValues values[2];
      int runs[2] = {0, 0};
      for (const bool recomputes : {false, true}) {
        std::vector<std::shared_ptr<MixedNetImpl>> nets(2);
        const auto trained = TrainMixedSharded(
            [&](MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) {
              nets[group->rank()] = std::static_pointer_cast<MixedNetImpl>(net.shared_from_this());
              if (!fsdp2 && units.size() > 1) return ShardNested1(net, group, recomputes);
              return ShardNet(net, group, units, fsdp2, recomputes);
            },
            true);
        ASSERT_OK(trained.status());
        values[recomputes] = *trained;
        runs[recomputes] = RunsOf(*nets[0]);
      }
      EXPECT_EQ(LargestDifference(values[0], values[1]), 0);
      EXPECT_EQ(runs[0], 2 * 3);
      EXPECT_EQ(runs[1], 2 * 2 * 3);
    }
  }
}

// The MixedNet with its blocks in a Sequential, which calls them itself.
struct SequenceNetImpl : torch::nn::Module {
  SequenceNetImpl() {
    stem = register_module("stem", torch::nn::Linear(16, 16));
    blocks = register_module("blocks", torch::nn::Sequential(Called<MixedBlock>(), Called<MixedBlock>()));
    head = register_module("head", torch::nn::Linear(16, 5));
    at::NoGradGuard no_grad;
    const auto values = MakeMixedNet()->named_parameters();
    for (const auto& item : named_parameters()) item.value().copy_(values[item.key()]);
  }
  at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(stem(x))); }
  torch::nn::Linear stem{nullptr}, head{nullptr};
  torch::nn::Sequential blocks{nullptr};
};

// The output, and the gradient of the input, of a net whose blocks compute in bfloat16, return float32 and recompute.
template <typename Net>
absl::StatusOr<std::pair<at::Tensor, at::Tensor>> OutputAndGradient(Net& net, std::shared_ptr<ProcessGroup> group) {
  FullyShardOptions options{.activation_checkpointing = true};
  options.mp_policy = {.param_dtype = DType::kBFloat16, .output_dtype = DType::kFloat32};
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(net)));
  for (const char* block : {"blocks.0", "blocks.1"}) {
    Module& module = *mirror->Find(block);
    EXPECT_EQ(module.type_name(), "MixedBlock");
    EXPECT_TRUE(IsAnyTorch<MixedBlockImpl>()(module));
    FSDP_RETURN_IF_ERROR(FullyShard(module, mesh, options).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, FullyShardOptions()).status());
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardedModule::FromFullyShard(std::move(mirror)));
  const at::Tensor x = MixedInput(0).requires_grad_();
  at::Tensor y;
  FSDP_RETURN_IF_ERROR(Caught([&] {
    y = sharded->Forward([&] { return net.forward(x); });
    y.square().mean().backward();
    return absl::OkStatus();
  }));
  return std::pair(y, x.grad());
}

TEST(ShardedModuleRecomputeTest, ASequentialCallsUnitsThatAreCalledModules) {
  // Made before there are ranks: initial values are drawn from a generator that all threads share.
  const std::shared_ptr<MixedNetImpl> of_lists[] = {MakeMixedNet(), MakeMixedNet()};
  SequenceNetImpl of_sequences[2];
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    FSDP_ASSIGN_OR_RETURN(const auto wanted, OutputAndGradient(*of_lists[group->rank()], group));
    SequenceNetImpl& sequence = of_sequences[group->rank()];
    FSDP_ASSIGN_OR_RETURN(const auto got, OutputAndGradient(sequence, group));
    EXPECT_TRUE(at::equal(got.first, wanted.first));
    EXPECT_TRUE(at::equal(got.second, wanted.second));
    for (const auto& block : *sequence.blocks) {
      EXPECT_EQ(std::dynamic_pointer_cast<MixedBlockImpl>(block.ptr())->runs, 2);
    }
    return absl::OkStatus();
  }));
}

// Arguments and results of several kinds.
struct PairBlockImpl : torch::nn::Module {
  PairBlockImpl() { fc = register_module("fc", torch::nn::Linear(8, 8)); }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x, int64_t power,
                                                          const std::optional<at::Tensor>& more) {
    const at::Tensor hidden = torch::tanh(fc(x));
    inner = hidden.storage().getWeakStorageImpl();
    at::Tensor y = hidden.pow(power);
    if (more.has_value()) y = y * *more;
    return {y, {x + y, x.argmax(-1)}};
  }
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> inner;  // of what the last run computed
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(PairBlock);

struct PairNetImpl : torch::nn::Module {
  PairNetImpl() {
    block = register_module("block", PairBlock());
    head = register_module("head", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [y, rest] = CallUnit(block, x, 3, std::optional<at::Tensor>(x * 2));
    return head(y) + rest[0] + rest[1].unsqueeze(1);
  }
  PairBlock block{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(ShardedModuleRecomputeTest, ACalledUnitMayTakeAndReturnWhatItLikesAndKeepsItsInputsAlone) {
  torch::manual_seed(3);
  const auto values = std::make_shared<PairNetImpl>();
  const at::Tensor x = at::randn({4, 8});
  const auto gradient_of = [](const at::Tensor& y, const at::Tensor& in) {
    y.square().sum().backward();
    return in.grad();
  };
  const at::Tensor plain_x = x.clone().requires_grad_();
  const at::Tensor plain_gradient = gradient_of(values->forward(plain_x), plain_x);  // CallUnit of an unsharded child
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    for (const bool recomputes : {false, true}) {
      const auto net = std::make_shared<PairNetImpl>();
      {
        at::NoGradGuard no_grad;
        for (const auto& item : net->named_parameters()) item.value().copy_(values->named_parameters()[item.key()]);
      }
      FSDP_ASSIGN_OR_RETURN(const auto sharded, Shard(*net, group,
                                                      {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"PairBlock"})),
                                                       .activation_checkpointing = recomputes}));
      FSDP_RETURN_IF_ERROR(Caught([&] {
        const at::Tensor in = x.clone().requires_grad_();
        const at::Tensor y = sharded->Forward([&] { return net->forward(in); });
        EXPECT_EQ(net->block->inner->expired(), recomputes);
        EXPECT_TRUE(at::equal(gradient_of(y, in), plain_gradient));
        at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(sharded->Forward([&] { return net->forward(x); }), y));
        return absl::OkStatus();
      }));
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
