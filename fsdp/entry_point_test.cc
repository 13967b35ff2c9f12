// SPDX-License-Identifier: Apache-2.0
//
// A function as a further entry point of a root, in both APIs.
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
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module_call.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

// Embeds with the root's own linear layer, encodes in a unit, and has a head in another; or is only the encoder.
class EncoderModel final : public Module {
 public:
  explicit EncoderModel(bool is_encoder) : is_encoder_(is_encoder) {
    embed_ = AddChild("embed", std::make_unique<Linear>(3, 5, Initializer::Normal(0, 0.5f)));
    encoder = AddChild("encoder", std::make_unique<Linear>(5, 4, Initializer::Normal(0, 0.5f), /*bias=*/true));
    head = AddChild("head", std::make_unique<Linear>(4, 7, Initializer::Normal(0, 0.5f)));
  }
  std::string_view type_name() const override { return "EncoderModel"; }

  absl::StatusOr<TensorList> Encode(const TensorList& inputs, Tape& tape) {
    EXPECT_TRUE(embed_->own_parameters()[0].second->data.defined());
    FSDP_ASSIGN_OR_RETURN(const Tensor embedded, embed_->Forward(inputs[0], tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor encoded, encoder->Forward(embedded, tape));
    return TensorList{encoded};
  }
  absl::StatusOr<TensorList> EncodeBackward(const TensorList& grads, Tape& tape) {
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, encoder->Backward(grads[0], tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_input, embed_->Backward(grad, tape));
    return TensorList{grad_input};
  }

  Linear *encoder, *head;

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(TensorList outputs, Encode(inputs, tape));
    if (is_encoder_) return outputs;
    FSDP_ASSIGN_OR_RETURN(outputs[0], head->Forward(outputs[0], tape));
    return outputs;
  }
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grads, Tape& tape) override {
    if (is_encoder_) return EncodeBackward(grads, tape);
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, head->Backward(grads[0], tape));
    return EncodeBackward(TensorList{grad}, tape);
  }

  Linear* embed_;
  const bool is_encoder_;
};

using Gradients = std::map<std::string, std::vector<float>>;

// A model of one of the APIs; units are the encoder, the head and the root.
struct Rig {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<EncoderModel> owned;
  std::unique_ptr<FullyShardedDataParallel> fsdp1;
  EncoderModel* model = nullptr;
  FsdpModule* fsdp2 = nullptr;

  static absl::StatusOr<Rig> Make(std::shared_ptr<ProcessGroup> group, bool is_fsdp2, bool is_encoder,
                                  bool reshards = true) {
    Rig rig;
    rig.group = std::make_shared<RecordingProcessGroup>(std::move(group), "world", rig.log);
    rig.owned = std::make_unique<EncoderModel>(is_encoder);
    rig.model = rig.owned.get();
    if (is_fsdp2) {
      FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(rig.group, {rig.group->size()}, {"shard"}));
      const FullyShardOptions options{.reshard_after_forward = reshards};
      for (Module* module : {rig.model->encoder, rig.model->head}) {
        FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
      }
      FSDP_ASSIGN_OR_RETURN(rig.fsdp2, FullyShard(*rig.model, mesh, options));
      FSDP_RETURN_IF_ERROR(rig.fsdp2->parameters().status());
      return rig;
    }
    FsdpOptions options;
    options.auto_wrap_policy =
        LambdaWrapPolicy([&rig](const Module& m) { return &m == rig.model->encoder || &m == rig.model->head; });
    FSDP_ASSIGN_OR_RETURN(rig.fsdp1, FullyShardedDataParallel::Wrap(std::move(rig.owned), rig.group, options));
    return rig;
  }

  absl::StatusOr<Tape> NewTape(bool training = true) {
    if (fsdp2 != nullptr) return fsdp2->NewTape(training);
    return fsdp1->NewTape(training);
  }

  absl::StatusOr<Tensor> Filled(const Shape& shape) const {
    FSDP_ASSIGN_OR_RETURN(Tensor t, Tensor::Empty(*group->device(), DType::kFloat32, shape));
    for (int64_t i = 0; i < t.numel(); ++i) t.data_as<float>()[i] = 0.25f * static_cast<float>(i - group->rank());
    return t;
  }

  // Forward and backward of the model, or of Encode as an entry point.
  absl::Status Step(bool by_entry_point, int64_t width) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Filled({2, 3}));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Filled({2, width}));
    if (by_entry_point) {
      EncoderModel& m = *model;
      FSDP_RETURN_IF_ERROR(
          CallForward(m, {x}, tape, [&](const TensorList& in, Tape& t) { return m.Encode(in, t); }).status());
      FSDP_RETURN_IF_ERROR(CallBackward(m, {grad}, tape, [&](const TensorList& in, Tape& t) {
                             return m.EncodeBackward(in, t);
                           }).status());
    } else {
      FSDP_RETURN_IF_ERROR(model->Forward(TensorList{x}, tape).status());
      FSDP_RETURN_IF_ERROR(model->Backward(TensorList{grad}, tape).status());
    }
    return tape.stream().Synchronize();
  }

  // This rank's gradients, which are then forgotten.
  absl::StatusOr<Gradients> TakeGradients() {
    std::vector<ShardedParameter*> parameters;
    if (fsdp2 != nullptr) {
      FSDP_ASSIGN_OR_RETURN(parameters, fsdp2->parameters());
    } else {
      parameters = fsdp1->parameters();
    }
    Gradients gradients;
    for (ShardedParameter* p : parameters) {
      if (!std::exchange(p->has_grad, false)) continue;
      gradients[p->fqn].assign(p->grad.data_as<float>(), p->grad.data_as<float>() + p->grad.numel());
    }
    return gradients;
  }
};

class EntryPointTest : public testing::TestWithParam<bool> {};

TEST_P(EntryPointTest, HasTheGradientsOfAModelOfWhichItIsTheForward) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Rig encoder, Rig::Make(group, GetParam(), /*is_encoder=*/true));
    FSDP_RETURN_IF_ERROR(encoder.Step(/*by_entry_point=*/false, 4));
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, encoder.TakeGradients());
    EXPECT_EQ(wanted.size(), 3u);
    FSDP_ASSIGN_OR_RETURN(Rig whole, Rig::Make(group, GetParam(), /*is_encoder=*/false));
    FSDP_ASSIGN_OR_RETURN(Rig both, Rig::Make(group, GetParam(), /*is_encoder=*/false));
    FSDP_RETURN_IF_ERROR(whole.Step(/*by_entry_point=*/false, 7));
    FSDP_ASSIGN_OR_RETURN(const Gradients of_forward, whole.TakeGradients());
    for (int round = 0; round < 2; ++round) {
      for (int encode = 0; encode < 2; ++encode) {
        FSDP_RETURN_IF_ERROR(both.Step(/*by_entry_point=*/true, 4));
        FSDP_ASSIGN_OR_RETURN(const Gradients gradients, both.TakeGradients());
        EXPECT_EQ(gradients, wanted) << "round " << round;
      }
      FSDP_RETURN_IF_ERROR(both.Step(/*by_entry_point=*/false, 7));
      FSDP_ASSIGN_OR_RETURN(const Gradients gradients, both.TakeGradients());
      EXPECT_EQ(gradients, of_forward) << "round " << round;
    }
    return absl::OkStatus();
  }));
}

TEST_P(EntryPointTest, AnErrorOfTheFunctionIsReturnedAndTheNextForwardGoesOn) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, GetParam(), /*is_encoder=*/false));
    FSDP_ASSIGN_OR_RETURN(Tape tape, rig.NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, rig.Filled({2, 3}));
    EXPECT_THAT(CallForward(*rig.model, {x}, tape,
                            [](const TensorList&, Tape&) { return absl::InvalidArgumentError("no such language"); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no such language")));
    return rig.Step(/*by_entry_point=*/false, 7);
  }));
}

INSTANTIATE_TEST_SUITE_P(Fsdp2, EntryPointTest, testing::Bool());

TEST(EntryPointEvaluationTest, ObeysReshardAfterForward) {
  for (const bool reshards : {true, false}) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(Rig rig, Rig::Make(group, /*is_fsdp2=*/true, /*is_encoder=*/false, reshards));
      for (int token = 0; token < 3; ++token) {
        rig.log->clear();
        FSDP_ASSIGN_OR_RETURN(Tape tape, rig.NewTape(/*training=*/false));
        FSDP_ASSIGN_OR_RETURN(const Tensor x, rig.Filled({2, 3}));
        FSDP_RETURN_IF_ERROR(CallForward(*rig.model, {x}, tape, [&](const TensorList& in, Tape& t) {
                               return rig.model->Encode(in, t);
                             }).status());
        FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
        EXPECT_EQ(CountEntries(*rig.log, "all_gather"), token == 0 || reshards ? 2 : 0) << "the head is not used";
      }
      return absl::OkStatus();
    }));
  }
}

}  // namespace
}  // namespace fsdp
