// SPDX-License-Identifier: Apache-2.0
//
// A unit of several modules of which one is called several times, or outside of the root's forward: the norm and the
// head of a language model whose loss is computed in chunks. All numbers are sums of few powers of two, so gradients
// are equal in every bit, however they are added up.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/nn/linear.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kRanks = 2;
constexpr int kRows = 4;
constexpr int kWidth = 5;

using Gradients = std::map<std::string, std::vector<float>>;

// Rows of chunk `i` of `chunks`.
Tensor ChunkOf(const Tensor& t, int i, int chunks) {
  const int64_t numel = t.numel() / chunks;
  return t.View({t.numel()}).Slice({i * numel, (i + 1) * numel}).View({kRows / chunks, t.numel() / kRows});
}

// Body, norm, head. The head is called for each chunk of rows, and each gives an output; with `leaves_head_out` the
// output is the norm's, and the program calls the head.
class ChunkedModel final : public Module {
 public:
  ChunkedModel(int chunks, bool leaves_head_out) : chunks_(chunks), leaves_head_out_(leaves_head_out) {
    body = AddChild("body", MakeLinear(3, kWidth));
    norm = AddChild("norm", MakeLinear(kWidth, kWidth));
    head = AddChild("head", MakeLinear(kWidth, 7));
  }
  std::string_view type_name() const override { return "ChunkedModel"; }

  Linear *body, *norm, *head;

 private:
  static std::unique_ptr<Linear> MakeLinear(int64_t in, int64_t out) {
    return std::make_unique<Linear>(in, out, Initializer::Constant(0.25f), /*bias=*/true);
  }

  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor hidden, body->Forward(inputs[0], tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor normed, norm->Forward(hidden, tape));
    if (leaves_head_out_) return TensorList{normed};
    TensorList outputs;
    for (int i = 0; i < chunks_; ++i) {
      FSDP_ASSIGN_OR_RETURN(Tensor output, head->Forward(ChunkOf(normed, i, chunks_), tape));
      outputs.push_back(std::move(output));
    }
    return outputs;
  }

  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grads, Tape& tape) override {
    Tensor grad = grads[0];
    if (!leaves_head_out_) {
      FSDP_ASSIGN_OR_RETURN(grad, tape.Empty(DType::kFloat32, {kRows, kWidth}));
      for (int i = chunks_ - 1; i >= 0; --i) {
        FSDP_ASSIGN_OR_RETURN(const Tensor part, head->Backward(grads[i], tape));
        tape.stream().CopyAsync(ChunkOf(grad, i, chunks_).data(), part.data(), part.nbytes());
        tape.stream().Run([part] { return absl::OkStatus(); });  // holds it until the copy has run
      }
    }
    FSDP_ASSIGN_OR_RETURN(grad, norm->Backward(grad, tape));
    FSDP_ASSIGN_OR_RETURN(grad, body->Backward(grad, tape));
    return TensorList{grad};
  }

  const int chunks_;
  const bool leaves_head_out_;
};

absl::StatusOr<Tensor> Filled(Device& device, const Shape& shape, float step) {
  FSDP_ASSIGN_OR_RETURN(Tensor t, Tensor::Empty(device, DType::kFloat32, shape));
  for (int64_t i = 0; i < t.numel(); ++i) t.data_as<float>()[i] = step * static_cast<float>(i % 4);
  return t;
}

// The model on one rank, with a root around everything and, unless `options` is null, a unit of norm and head.
struct Rig {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<ChunkedModel> model;
  FsdpModule* root = nullptr;
  FsdpModule* both = nullptr;

  static absl::StatusOr<Rig> Make(std::shared_ptr<ProcessGroup> group, int chunks, bool leaves_head_out,
                                  const FullyShardOptions* options) {
    Rig rig;
    rig.group = std::make_shared<RecordingProcessGroup>(std::move(group), "world", rig.log);
    rig.model = std::make_unique<ChunkedModel>(chunks, leaves_head_out);
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(rig.group, {rig.group->size()}, {"shard"}));
    if (options != nullptr) {
      FSDP_ASSIGN_OR_RETURN(rig.both,
                            FullyShard(std::vector<Module*>{rig.model->norm, rig.model->head}, mesh, *options));
    }
    FSDP_ASSIGN_OR_RETURN(rig.root, FullyShard(*rig.model, mesh));
    FSDP_RETURN_IF_ERROR(rig.root->parameters().status());
    return rig;
  }

  float scale() const { return static_cast<float>(group->rank() + 1); }

  // Forward and, unless an evaluation, backward.
  absl::Status Step(int chunks, bool training = true) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape(training));
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Filled(*group->device(), {kRows, 3}, scale()));
    FSDP_ASSIGN_OR_RETURN(const TensorList outputs, model->Forward(TensorList{x}, tape));
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    if (!training) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(const Tensor all, Filled(*group->device(), {kRows, 7}, 0.5f));
    TensorList grads;
    for (int i = 0; i < chunks; ++i) grads.push_back(ChunkOf(all, i, chunks));
    FSDP_RETURN_IF_ERROR(model->Backward(std::move(grads), tape).status());
    return tape.stream().Synchronize();
  }

  // The same numbers for a model that leaves the head out: a forward and a backward of the head for each chunk.
  absl::Status StepOutside(int chunks) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Filled(*group->device(), {kRows, 3}, scale()));
    FSDP_ASSIGN_OR_RETURN(const TensorList outputs, model->Forward(TensorList{x}, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor all, Filled(*group->device(), {kRows, 7}, 0.5f));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, tape.Empty(DType::kFloat32, {kRows, kWidth}));
    for (int i = 0; i < chunks; ++i) {
      FSDP_ASSIGN_OR_RETURN(Tape own, root->NewTape());
      FSDP_RETURN_IF_ERROR(model->head->Forward(ChunkOf(outputs[0], i, chunks), own).status());
      FSDP_ASSIGN_OR_RETURN(const Tensor part, model->head->Backward(ChunkOf(all, i, chunks), own));
      own.stream().CopyAsync(ChunkOf(grad, i, chunks).data(), part.data(), part.nbytes());
      FSDP_RETURN_IF_ERROR(own.stream().Synchronize());
    }
    FSDP_RETURN_IF_ERROR(model->Backward(TensorList{grad}, tape).status());
    return tape.stream().Synchronize();
  }

  // This rank's gradients, which are then forgotten.
  absl::StatusOr<Gradients> TakeGradients() {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    Gradients gradients;
    for (ShardedParameter* p : parameters) {
      EXPECT_TRUE(p->has_grad) << p->fqn;
      gradients[p->fqn].assign(p->grad.data_as<float>(), p->grad.data_as<float>() + p->grad.numel());
      p->has_grad = false;
    }
    return gradients;
  }
};

absl::StatusOr<Gradients> WholeGradients(const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(Rig plain, Rig::Make(group, /*chunks=*/1, /*leaves_head_out=*/false, nullptr));
  FSDP_RETURN_IF_ERROR(plain.Step(1));
  return plain.TakeGradients();
}

std::vector<FullyShardOptions> AllOptions() {
  return {{}, {.reshard_after_forward = false}, {.activation_checkpointing = true}};
}

class GroupedModulesTest : public testing::TestWithParam<int> {};

TEST_P(GroupedModulesTest, AHeadThatIsCalledForEachChunkReducesOnceAndHasTheGradientsOfOneCall) {
  for (const FullyShardOptions& options : AllOptions()) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Gradients wanted, WholeGradients(group));
      FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, GetParam(), /*leaves_head_out=*/false, &options));
      for (int step = 0; step < 3; ++step) {
        if (step == 2) FSDP_RETURN_IF_ERROR(rig.Step(GetParam(), /*training=*/false));
        rig.log->clear();
        FSDP_RETURN_IF_ERROR(rig.Step(GetParam()));
        EXPECT_EQ(CountEntries(*rig.log, "reduce_scatter"), 2) << "the root's and that of norm and head";
        FSDP_ASSIGN_OR_RETURN(const Gradients gradients, rig.TakeGradients());
        EXPECT_EQ(gradients, wanted) << "step " << step;
      }
      return absl::OkStatus();
    }));
  }
}

TEST_P(GroupedModulesTest, AHeadThatTheProgramCallsForEachChunkHasTheGradientsOfOneCall) {
  for (const FullyShardOptions& options : AllOptions()) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Gradients wanted, WholeGradients(group));
      FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, GetParam(), /*leaves_head_out=*/true, &options));
      for (int step = 0; step < 3; ++step) {
        FSDP_RETURN_IF_ERROR(rig.StepOutside(GetParam()));
        FSDP_ASSIGN_OR_RETURN(const Gradients gradients, rig.TakeGradients());
        EXPECT_EQ(gradients, wanted) << "step " << step;
      }
      return absl::OkStatus();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, GroupedModulesTest, testing::Values(1, 2, 4));

TEST(GroupedModulesReshardTest, AUnitIsGatheredForItsFirstModuleAndReshardedAfterItsLast) {
  for (const bool reshard : {false, true}) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const FullyShardOptions options{.reshard_after_forward = reshard};
      FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, 1, /*leaves_head_out=*/false, &options));
      for (int step = 0; step < 2; ++step) {
        rig.log->clear();
        FSDP_RETURN_IF_ERROR(rig.Step(1));
        EXPECT_EQ(CountEntries(*rig.log, "all_gather"), reshard ? 3 : 2) << "the root once, and the unit in each pass";
      }
      return absl::OkStatus();
    }));
  }
}

// The unit is gathered by the forward, the forward and the backward of the head, and the backward; the root by the
// forward and, since the head's backward ended a pass, the backward.
TEST(GroupedModulesReshardTest, AUnitOfWhichOneModuleRanIsReshardedBeforeTheOtherIsCalled) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const FullyShardOptions options{.reshard_after_forward = true};
    FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, 1, /*leaves_head_out=*/true, &options));
    for (int step = 0; step < 2; ++step) {
      rig.log->clear();
      FSDP_RETURN_IF_ERROR(rig.StepOutside(1));
      EXPECT_EQ(CountEntries(*rig.log, "all_gather"), 4 + 2);
    }
    return absl::OkStatus();
  }));
}

TEST(GroupedModulesReshardTest, AUnitOfWhichOneModuleRanIsReshardedAtTheEndOfTheForward) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const FullyShardOptions options;
    FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, 1, /*leaves_head_out=*/true, &options));
    for (int forward = 0; forward < 2; ++forward) {
      rig.log->clear();
      FSDP_RETURN_IF_ERROR(rig.Step(1, /*training=*/false));
      EXPECT_EQ(CountEntries(*rig.log, "all_gather"), forward == 0 ? 2 : 1) << "the root is kept, the unit is not";
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
