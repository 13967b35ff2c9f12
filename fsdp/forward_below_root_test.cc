// SPDX-License-Identifier: Apache-2.0
//
// A forward that begins at a module below the root, after and before the root's first use.
#include <algorithm>
#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// The tree of test_fully_shard.h with a unit for each child of the root, which has no own parameters.
absl::StatusOr<TestFullyShard> MakeChildren(std::shared_ptr<ProcessGroup> group, const FullyShardOptions& options) {
  TestFullyShard made;
  made.group = std::make_shared<RecordingProcessGroup>(std::move(group), "world", made.log);
  FSDP_ASSIGN_OR_RETURN(made.mesh, DeviceMesh::Create(made.group, {made.group->size()}, {"shard"}));
  made.model = MakeTestBlocks();
  for (const auto& [name, child] : made.model->children()) {
    FSDP_ASSIGN_OR_RETURN(FsdpModule * block, FullyShard(*child, made.mesh, options));
    made.blocks.push_back(block);
  }
  FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*made.model, made.mesh, options));
  FSDP_RETURN_IF_ERROR(made.root->parameters().status());
  return made;
}

absl::StatusOr<Tensor> Filled(Device& device, const Shape& shape, float value) {
  FSDP_ASSIGN_OR_RETURN(Tensor filled, Tensor::Empty(device, DType::kFloat32, shape));
  std::fill_n(filled.data_as<float>(), filled.numel(), value);
  return filled;
}

// A step in which the program calls the children one by one, as the root's forward and backward do.
absl::Status StepByChildren(const TestFullyShard& test, int step) {
  FSDP_ASSIGN_OR_RETURN(Tape tape, test.blocks[0]->NewTape());
  FSDP_ASSIGN_OR_RETURN(Tensor x, test.Input(step));
  const auto& children = test.model->children();
  for (const auto& [name, child] : children) {
    FSDP_ASSIGN_OR_RETURN(x, child->Forward(x, tape));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor grad, Filled(test.device(), x.shape(), static_cast<float>(test.group->rank() + 1)));
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    FSDP_ASSIGN_OR_RETURN(grad, child->second->Backward(grad, tape));
  }
  return tape.stream().Synchronize();
}

TEST(ForwardBelowRootTest, PassesOfTheChildrenHaveTheBitsOfOnePassOfTheRoot) {
  for (const bool recompute : {false, true}) {
    ASSERT_OK(RunRanks(3, [recompute](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const FullyShardOptions options{.activation_checkpointing = recompute};
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard whole, MakeChildren(group, options));
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard pieces, MakeChildren(group, options));
      for (int step = 0; step < 3; ++step) {  // without ZeroGrad: gradients of steps add up
        FSDP_RETURN_IF_ERROR(whole.ForwardAndBackward(step));
        FSDP_RETURN_IF_ERROR(step == 1 ? pieces.ForwardAndBackward(step) : StepByChildren(pieces, step));
        FSDP_ASSIGN_OR_RETURN(const Gradients wanted, whole.Gradients());
        FSDP_ASSIGN_OR_RETURN(const Gradients got, pieces.Gradients());
        EXPECT_EQ(wanted.size(), 8u);
        EXPECT_EQ(got, wanted);
      }
      return absl::OkStatus();
    }));
  }
}

TEST(ForwardBelowRootTest, AModuleBelowIsGatheredForwardAndBackwardAndReducedAlone) {
  ASSERT_OK(RunFullyShard(3, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    test.log->clear();
    for (int step = 0; step < 2; ++step) {
      FSDP_ASSIGN_OR_RETURN(Tape tape, test.blocks[0]->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor x, test.Input(step));
      FSDP_ASSIGN_OR_RETURN(const Tensor y, test.blocks[0]->modules()[0]->Forward(x, tape));
      FSDP_ASSIGN_OR_RETURN(const Tensor grad, Filled(test.device(), y.shape(), 1));
      FSDP_RETURN_IF_ERROR(test.blocks[0]->modules()[0]->Backward(grad, tape).status());
      FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    }
    EXPECT_EQ(test.Count("all_gather world"), 4);
    EXPECT_EQ(test.Count("reduce_scatter"), 2);
    FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    EXPECT_EQ(gradients.size(), 4u);  // two layers
    return absl::OkStatus();
  }));
}

TEST(ForwardBelowRootTest, AnEvaluationBelowTheRootLeavesNothingUnshardedAndTheRootGoesOn) {
  ASSERT_OK(RunFullyShard(3, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, test.Gradients());
    FSDP_RETURN_IF_ERROR(test.ZeroGrad());
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape(/*training=*/false));
    FSDP_ASSIGN_OR_RETURN(const Tensor x, test.Input());
    FSDP_RETURN_IF_ERROR(test.blocks[0]->modules()[0]->Forward(x, tape).status());
    FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
    for (int unit = 0; unit < model->units().size(); ++unit) {
      EXPECT_FALSE(model->runtime().is_unsharded(unit)) << unit;
    }
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients got, test.Gradients());
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(ForwardBelowRootTest, AfterAFailedPassTheSameModuleOrTheRootComesNext) {
  ASSERT_OK(RunFullyShard(2, {}, [](TestFullyShard& test) -> absl::Status {
    Module& block = *test.blocks[0]->modules()[0];
    FSDP_ASSIGN_OR_RETURN(const Tensor good, test.Input());
    FSDP_ASSIGN_OR_RETURN(const Tensor bad, Filled(test.device(), {2, 4}, 1));
    for (const bool root_next : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
      EXPECT_FALSE(block.Forward(bad, tape).ok());
      EXPECT_THAT(test.blocks[1]->modules()[0]->Forward(good, tape).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("forward of unit 1 after a pass of unit 0 that failed")));
      if (root_next) {
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(Tape again, test.root->NewTape());
      FSDP_RETURN_IF_ERROR(block.Forward(good, again).status());
    }
    return absl::OkStatus();
  }));
}

TEST(ForwardBelowRootTest, ABackwardBelowTheRootNeedsAForwardThatBeganThere) {
  ASSERT_OK(RunFullyShard(2, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Filled(test.device(), {2, 5}, 1));
    EXPECT_THAT(test.blocks[0]->modules()[0]->Backward(grad, tape).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("backward of unit 0 outside of a backward of the model: call backward of the module "
                                   "whose forward was called")));
    return absl::OkStatus();
  }));
}

// PyTorch's lazy initialisation: the module that is called first is a root, and modules around it come too late.
TEST(ForwardBelowRootTest, AModuleThatIsUsedBeforeItsRootTrainsAsARootOfItsOwn) {
  ASSERT_OK(RunFullyShard(3, {}, [](TestFullyShard& test) -> absl::Status {
    Module& block = *test.blocks[0]->modules()[0];
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.blocks[0]->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, test.Input());
    test.log->clear();
    FSDP_ASSIGN_OR_RETURN(const Tensor y, block.Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Filled(test.device(), y.shape(), 1));
    FSDP_RETURN_IF_ERROR(block.Backward(grad, tape).status());
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    EXPECT_TRUE(test.blocks[0]->is_root());
    EXPECT_EQ(test.Count("all_gather world"), 1);  // a root is kept for backward
    EXPECT_EQ(test.Count("reduce_scatter"), 1);
    EXPECT_THAT(test.root->NewTape().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("module \"0\" has already been lazily initialized as a root of its own")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
