// SPDX-License-Identifier: Apache-2.0
//
// Modules whose forwards return more than one tensor, or keep some.
#include <torch/nn.h>
#include <torch/optim.h>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The outputs of a forward are of any type, and any of them can have a backward.
struct HeadsImpl : torch::nn::Module {
  struct Output {
    at::Tensor left, right;
    template <typename Visitor>
    void VisitTensors(const Visitor& visit) const {
      visit(left);
      visit(right);
    }
  };
  HeadsImpl() {
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
  }
  Output forward(const at::Tensor& x) { return {left(x), right(x)}; }
  torch::nn::Linear left{nullptr}, right{nullptr};
};

TEST(ShardedModuleOutputsTest, BackwardOfSomeOutputsOfAnyStructureReachesTheirUnitsAlone) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(const auto sharded, FullyShard(heads, mesh, HasTypeName({"Linear"})));
    const at::Tensor x = at::ones({3, 4});
    const auto has_grad = [&] {
      std::vector<bool> has;
      for (const ShardedParameter* p : sharded->parameters()) has.push_back(p->has_grad);
      for (ShardedParameter* p : sharded->parameters()) p->has_grad = false;
      return has;
    };
    using ::testing::ElementsAre;
    return Caught([&] {
      const HeadsImpl::Output both = sharded->Forward([&] { return heads.forward(x); });
      both.right.sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(false, false, true, true));
      both.left.sum().backward();  // of the same forward
      EXPECT_THAT(has_grad(), ElementsAre(true, true, false, false));

      const auto tuple = sharded->Forward([&] {
        const HeadsImpl::Output out = heads.forward(x);
        return std::make_tuple(std::vector<at::Tensor>{out.left}, std::map<std::string, at::Tensor>{{"r", out.right}});
      });
      std::get<0>(tuple)[0].sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(true, true, false, false));

      at::Tensor kept;  // in no output
      sharded->Forward([&] { kept = heads.forward(x).right; });
      kept.sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(false, false, true, true));
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleOutputsTest, AuxiliaryLossesKeptByTheModelHaveTheirGradients) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    const at::Tensor before = heads.left->bias.detach().clone();
    FSDP_ASSIGN_OR_RETURN(const auto sharded,
                          Shard(heads, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Linear"}))}));
    return Caught([&]() -> absl::Status {
      at::Tensor auxiliary;
      const at::Tensor y = sharded->Forward([&] {
        const HeadsImpl::Output out = heads.forward(at::ones({3, 4}));
        auxiliary = out.left.sum();
        return out.right;
      });
      (y.sum() + 2 * auxiliary).backward();
      FSDP_ASSIGN_OR_RETURN(const Tensor left, sharded->fsdp().GetFullGradient("left.bias"));
      FSDP_ASSIGN_OR_RETURN(const Tensor right, sharded->fsdp().GetFullGradient("right.bias"));
      EXPECT_EQ(left.data_as<float>()[0], 6);
      EXPECT_EQ(right.data_as<float>()[0], 3);
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleOutputsTest, IgnoredModulesKeepTheirMemory) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MirrorModule> mirror, MirrorModule::Create(TreeOf(heads)));
    FsdpOptions options{.ignored_modules = {mirror->Find("left")}};
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardedModule::Wrap(std::move(mirror), group, options));
    EXPECT_EQ(sharded->parameters().size(), 2u);
    return Caught([&] {
      EXPECT_EQ(heads.left->weight.sum().item<float>(), heads.left->weight.detach().sum().item<float>());
      const HeadsImpl::Output out = sharded->Forward([&] { return heads.forward(at::ones({3, 4})); });
      (out.left.sum() + out.right.sum()).backward();
      EXPECT_EQ(heads.left->bias.grad()[0].item<float>(), 3);
      EXPECT_FALSE(heads.right->bias.grad().defined());
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp
