// SPDX-License-Identifier: Apache-2.0
//
// ShareCommCtx: several roots on one set of streams, such as the parts of a pipeline on one rank.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The children of test_fully_shard.h's tree, one root each, and the gradients of a step through all of them.
struct Parts {
  TestFullyShard test;
  std::vector<FsdpModule*> roots;

  static absl::StatusOr<Parts> Make(std::shared_ptr<ProcessGroup> group, int replicas) {
    Parts parts;
    parts.test.group = std::move(group);
    const int ranks = parts.test.group->size();
    FSDP_ASSIGN_OR_RETURN(
        parts.test.mesh,
        replicas == 1 ? DeviceMesh::Create(parts.test.group, {ranks}, {"shard"})
                      : DeviceMesh::Create(parts.test.group, {replicas, ranks / replicas}, {"replicate", "shard"}));
    parts.test.model = MakeTestBlocks();
    for (const auto& [name, child] : parts.test.model->children()) {
      FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*child, parts.test.mesh, {}));
      parts.roots.push_back(root);
    }
    return parts;
  }

  // Forward and backward of every part on one tape, without synchronising the streams in between.
  absl::Status Step(int step) const {
    FSDP_ASSIGN_OR_RETURN(Tape tape, roots[0]->NewTape());
    FSDP_ASSIGN_OR_RETURN(Tensor x, test.Input(step));
    for (FsdpModule* root : roots) {
      FSDP_RETURN_IF_ERROR(root->parameters().status());  // the first use
      FSDP_ASSIGN_OR_RETURN(x, root->modules()[0]->Forward(x, tape));
    }
    FSDP_ASSIGN_OR_RETURN(Tensor grad, Tensor::Empty(test.device(), DType::kFloat32, x.shape()));
    std::fill_n(grad.data_as<float>(), grad.numel(), static_cast<float>(test.group->rank() + 1));
    for (auto root = roots.rbegin(); root != roots.rend(); ++root) {
      FSDP_ASSIGN_OR_RETURN(grad, (*root)->modules()[0]->Backward(grad, tape));
    }
    return tape.stream().Synchronize();
  }

  // By the names that parameters have below one root.
  absl::StatusOr<Gradients> AllGradients() const {
    Gradients gradients;
    for (size_t i = 0; i < roots.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, roots[i]->parameters());
      for (const ShardedParameter* parameter : parameters) {
        const float* grad = parameter->grad.data_as<float>();
        gradients[absl::StrCat(i, ".", parameter->fqn)].assign(grad, grad + parameter->grad.numel());
      }
    }
    return gradients;
  }
};

// Values of the parameters depend on their names, so each part takes the whole model's.
absl::Status CopyValues(const TestFullyShard& from, const Parts& to) {
  FSDP_ASSIGN_OR_RETURN(const StateDict whole, from.root->GetFullStateDict());
  for (size_t i = 0; i < to.roots.size(); ++i) {
    StateDict part;
    part.type = StateDictType::kFull;
    const std::string prefix = absl::StrCat(i, ".");
    for (const auto& [key, value] : whole.entries()) {
      if (key.fqn.rfind(prefix, 0) == 0) part.Set(StateKey::Model(key.fqn.substr(prefix.size())), value);
    }
    FSDP_RETURN_IF_ERROR(to.roots[i]->LoadStateDict(part).status());
  }
  return absl::OkStatus();
}

TEST(ShareCommCtxTest, PartsOnOneTapeHaveTheGradientsOfOneRootAroundThemBitForBit) {
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(2 * replicas, [replicas](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard whole, TestFullyShard::Make(group, {}, replicas));
      FSDP_ASSIGN_OR_RETURN(const Parts parts, Parts::Make(group, replicas));
      FSDP_RETURN_IF_ERROR(ShareCommCtx(parts.roots));
      FSDP_RETURN_IF_ERROR(CopyValues(whole, parts));
      for (int step = 0; step < 3; ++step) {
        FSDP_RETURN_IF_ERROR(whole.ForwardAndBackward(step));
        FSDP_RETURN_IF_ERROR(parts.Step(step));
        FSDP_ASSIGN_OR_RETURN(const Gradients wanted, whole.Gradients());
        FSDP_ASSIGN_OR_RETURN(const Gradients got, parts.AllGradients());
        EXPECT_EQ(got, wanted) << step;
      }
      return absl::OkStatus();
    }));
  }
}

TEST(ShareCommCtxTest, RootsThatDoNotShareRefuseEachOthersTape) {
  EXPECT_THAT(RunRanks(1,
                       [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
                         FSDP_ASSIGN_OR_RETURN(const Parts parts, Parts::Make(group, 1));
                         return parts.Step(0);
                       }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("on a tape of another stream")));
}

TEST(ShareCommCtxTest, ARootInUseGivesItsStreamsToThoseThatAreNot) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Parts parts, Parts::Make(group, 1));
    FSDP_ASSIGN_OR_RETURN(const auto first, ShardedModel::Of(*parts.roots[0]));
    const UnitStreams* used = first->runtime().streams().get();
    EXPECT_OK(ShareCommCtx(parts.roots));
    EXPECT_OK(ShareCommCtx(parts.roots));  // a second time changes nothing
    FSDP_RETURN_IF_ERROR(parts.Step(0));
    for (FsdpModule* root : parts.roots) {
      FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*root));
      EXPECT_EQ(model->runtime().streams().get(), used);
    }
    EXPECT_OK(ShareCommCtx(parts.roots)) << "when all of them are in use";
    return ShareCommCtx({});
  }));
}

// The work of the destroyed part is done, and the streams continue for the others.
TEST(ShareCommCtxTest, OnePartMayGoBeforeTheOthers) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard gone, TestFullyShard::Make(group));
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard stays, TestFullyShard::Make(group));
    FSDP_RETURN_IF_ERROR(ShareCommCtx({gone.root, stays.root}));
    FSDP_RETURN_IF_ERROR(gone.ForwardAndBackward());
    FSDP_RETURN_IF_ERROR(stays.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, gone.Gradients());
    FSDP_RETURN_IF_ERROR(gone.root->Unshard());
    gone.model.reset();
    FSDP_RETURN_IF_ERROR(stays.ZeroGrad());
    FSDP_RETURN_IF_ERROR(stays.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients got, stays.Gradients());
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(ShareCommCtxTest, WhatCannotShareIsRefusedByItsPlace) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Parts parts, Parts::Make(group, 1));
    EXPECT_THAT(ShareCommCtx({parts.roots[0], nullptr}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ShareCommCtx: roots[1] of 2 is null")));
    FSDP_RETURN_IF_ERROR(parts.roots[1]->parameters().status());
    EXPECT_THAT(ShareCommCtx({parts.roots[0], parts.roots[1]}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("roots[1] of 2, a Block, has been used"), HasSubstr("or list it first"))));
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard whole, TestFullyShard::Make(group));
    FSDP_RETURN_IF_ERROR(whole.root->parameters().status());
    EXPECT_THAT(ShareCommCtx({whole.blocks[0]}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                          HasSubstr("a Block, is below another root: expected roots")));
    return absl::OkStatus();
  }));
}

// Ranks that are threads have one device each.
TEST(ShareCommCtxTest, RootsOnTwoDevicesAreRefused) {
  std::vector<FsdpModule*> roots(2);
  std::vector<Parts> kept(2);
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int rank = group->rank();
    FSDP_ASSIGN_OR_RETURN(kept[rank], Parts::Make(group, 1));
    roots[rank] = kept[rank].roots[0];
    FSDP_RETURN_IF_ERROR(group->AllGatherObject("").status());
    if (rank == 0) {
      EXPECT_THAT(ShareCommCtx(roots), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is on another device")));
    }
    FSDP_RETURN_IF_ERROR(group->AllGatherObject("").status());
    kept[rank] = Parts();
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
