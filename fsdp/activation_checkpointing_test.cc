// SPDX-License-Identifier: Apache-2.0
//
// activation_checkpointing, by its purpose: a unit runs its forward twice and holds only its input in between.
// accumulation_test checks that the results have the same bits.
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kWidth = 512;
constexpr int64_t kActivation = kWidth * 4;  // bytes
constexpr int kBlocks = 2, kLayersOfABlock = 3;

// Saves an additional tensor for backward, and counts its forwards.
class Counting final : public Module {
 public:
  Counting() { AddParameter("weight", {3}, Initializer::Constant(1)); }
  std::string_view type_name() const override { return "Counting"; }
  int forwards() const { return forwards_; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    ++forwards_;
    FSDP_ASSIGN_OR_RETURN(const Tensor output, tape.Empty(DType::kFloat32, input.shape()));
    tape.device().ops().CastDivide(input, output, 2, tape.stream());
    tape.Save(output);
    return output;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_RETURN_IF_ERROR(tape.Restore().status());
    return grad_output;
  }

  int forwards_ = 0;
};

// root > 0 (Block), 1 (Block), of three layers each.
struct Blocks {
  std::unique_ptr<TestSequence> root = std::make_unique<TestSequence>();
  std::vector<Counting*> layers;

  Blocks() {
    for (int block = 0; block < kBlocks; ++block) {
      TestSequence* const made = root->AddSequence("Block");
      for (int i = 0; i < kLayersOfABlock; ++i) layers.push_back(made->Add(std::make_unique<Counting>()));
    }
    root->Add(std::make_unique<Counting>());  // the root's own
  }
};

struct Outcome {
  std::vector<int> forwards;  // of each layer of a block
  int64_t kept = 0;           // bytes between forward and backward
};

absl::StatusOr<Outcome> Step(Module& model, Tape tape, const std::vector<Counting*>& layers) {
  Device& device = tape.device();
  FSDP_ASSIGN_OR_RETURN(Tensor x, Tensor::Empty(device, DType::kFloat32, {kWidth}));
  device.ops().Zero(x, tape.stream());
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  Outcome outcome;
  const int64_t before = device.allocated_bytes();
  FSDP_ASSIGN_OR_RETURN(Tensor y, model.Forward(x, tape));
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  outcome.kept = device.allocated_bytes() - before;
  FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  for (const Counting* layer : layers) outcome.forwards.push_back(layer->forwards());
  return outcome;
}

// Both runs keep the root's own activation. A unit that is recomputed keeps its input: for the first that is the
// caller's, for the second the first's output.
void ExpectRecomputed(const Outcome& outcome, bool recomputed) {
  EXPECT_EQ(outcome.forwards, std::vector<int>(kBlocks * kLayersOfABlock, recomputed ? 2 : 1));
  EXPECT_EQ(outcome.kept, (1 + (recomputed ? kBlocks - 1 : kBlocks * kLayersOfABlock)) * kActivation);
}

absl::StatusOr<Outcome> StepOfFsdp1(const FsdpOptions& options) {
  Outcome outcome;
  FSDP_RETURN_IF_ERROR(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    Blocks made;
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(made.root), group, options));
    FSDP_ASSIGN_OR_RETURN(const Outcome mine, Step(model->module(), model->NewTape(), made.layers));
    if (group->rank() == 0) outcome = mine;
    return absl::OkStatus();
  }));
  return outcome;
}

absl::StatusOr<Outcome> StepOfFsdp2(const FullyShardOptions& blocks) {
  Outcome outcome;
  FSDP_RETURN_IF_ERROR(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    const Blocks made;
    for (int block = 0; block < kBlocks; ++block) {
      FSDP_RETURN_IF_ERROR(FullyShard(*made.root->children()[block].second, mesh, blocks).status());
    }
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*made.root, mesh));
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Outcome mine, Step(*made.root, std::move(tape), made.layers));
    if (group->rank() == 0) outcome = mine;
    return absl::OkStatus();
  }));
  return outcome;
}

TEST(ActivationCheckpointingTest, UnitsRunForwardTwiceAndHoldTheirInputAlone) {
  for (const bool recompute : {false, true}) {
    FsdpOptions options{.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))};
    options.activation_checkpointing = recompute;
    ASSERT_OK_AND_ASSIGN(const Outcome outcome, StepOfFsdp1(options));
    ExpectRecomputed(outcome, recompute);
  }
}

TEST(ActivationCheckpointingTest, APolicyMaySayItOfAUnit) {
  for (const bool recompute : {false, true}) {
    FsdpOptions options{.activation_checkpointing = !recompute};
    options.auto_wrap_policy = CustomWrapPolicy([recompute](Module& module) -> std::optional<UnitOverrides> {
      if (module.type_name() != "Block") return std::nullopt;
      return UnitOverrides{.activation_checkpointing = recompute};
    });
    ASSERT_OK_AND_ASSIGN(const Outcome outcome, StepOfFsdp1(options));
    ExpectRecomputed(outcome, recompute);
  }
}

TEST(ActivationCheckpointingTest, FullyShardMaySayItOfAUnit) {
  for (const bool recompute : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const Outcome outcome, StepOfFsdp2({.activation_checkpointing = recompute}));
    ExpectRecomputed(outcome, recompute);
  }
}

}  // namespace
}  // namespace fsdp
