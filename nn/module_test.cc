// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module_list.h"
#include "fsdp/nn/sequential.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two linear maps that share a weight, and a bias.
class TiedPair final : public Module {
 public:
  TiedPair() {
    scale_ = AddParameter("scale", {2}, Initializer::Constant(3));
    first_ = AddChild("first", std::make_unique<Conv1D>(2, 2, Initializer::Constant(1)));
    second_ = AddChild("second", std::make_unique<Linear>(first_->own_parameters()[0].second));
  }
  std::string_view type_name() const override { return "TiedPair"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override {
    absl::StatusOr<Tensor> hidden = first_->Forward(x, tape);
    return hidden.ok() ? second_->Forward(*hidden, tape) : hidden;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad, Tape& tape) override {
    absl::StatusOr<Tensor> hidden = second_->Backward(grad, tape);
    return hidden.ok() ? first_->Backward(*hidden, tape) : hidden;
  }

  std::shared_ptr<Parameter> scale_;
  Conv1D* first_;
  Linear* second_;
};

std::vector<std::string> ParameterNames(Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.NamedParameters()) names.push_back(name);
  return names;
}

// (x, mask) to (x + mask, x), with backward to match; the mask may be left out. Records whether its inputs and
// gradients were defined.
class MaskedPair final : public Module {
 public:
  std::string_view type_name() const override { return "MaskedPair"; }

  std::vector<bool> seen;

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override {
    if (inputs.size() != 2) return absl::InvalidArgumentError("MaskedPair takes x and a mask");
    seen.push_back(inputs[1].defined());
    if (!inputs[1].defined()) return TensorList{inputs[0], inputs[0]};
    absl::StatusOr<Tensor> sum = tape.Empty(inputs[0].dtype(), inputs[0].shape());
    if (!sum.ok()) return sum.status();
    tape.ops().Add(inputs[0], inputs[1], *sum, tape.stream());
    return TensorList{*sum, inputs[0]};
  }
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grads, Tape& tape) override {
    seen.push_back(grads[1].defined());
    if (!grads[1].defined()) return TensorList{grads[0], Tensor()};
    absl::StatusOr<Tensor> sum = tape.Empty(grads[0].dtype(), grads[0].shape());
    if (!sum.ok()) return sum.status();
    tape.ops().Add(grads[0], grads[1], *sum, tape.stream());
    return TensorList{*sum, Tensor()};
  }
};

class ModuleTest : public testing::Test {
 protected:
  void SetUp() override { pair_.AssignNames(); }

  Tensor Ones(const Shape& shape) const {
    const Tensor t = *Tensor::Empty(*device_, DType::kFloat32, shape);
    for (int64_t i = 0; i < t.numel(); ++i) t.data_as<float>()[i] = 1;
    return t;
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
  TiedPair pair_;
};

TEST_F(ModuleTest, NamesAreDottedParentsFirst) {
  std::vector<std::string> paths;
  for (const auto& [path, module] : pair_.NamedModules()) paths.push_back(path);
  EXPECT_THAT(paths, ElementsAre("", "first", "second"));
  EXPECT_THAT(ParameterNames(pair_), ElementsAre("scale", "first.weight", "first.bias", "second.weight"));
}

TEST_F(ModuleTest, SharedParameterKeepsItsFirstName) {
  const auto parameters = pair_.NamedParameters();
  EXPECT_EQ(parameters[1].second, parameters[3].second);
  EXPECT_EQ(parameters[3].second->fqn, "first.weight");
}

TEST_F(ModuleTest, ListNumbersItsChildren) {
  ModuleList list;
  for (int i = 0; i < 2; ++i) list.Append(std::make_unique<Conv1D>(1, 1, Initializer::Constant(0)));
  EXPECT_THAT(ParameterNames(list), ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(list.Forward(Ones({1}), tape), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ModuleList")));
  EXPECT_FALSE(list.has_forward());
  EXPECT_TRUE(list.children()[0].second->has_forward());
}

TEST_F(ModuleTest, UnboundParameterIsNamed) {
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(pair_.Forward(Ones({1, 2}), tape),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("parameter \"first.weight\" [2, 2]: data is not bound")));
}

TEST_F(ModuleTest, MaterializeFillsDataAndZeroesGrad) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  for (const auto& [name, parameter] : pair_.NamedParameters()) {
    for (int64_t i = 0; i < parameter->data.numel(); ++i) {
      EXPECT_EQ(parameter->data.data_as<float>()[i], parameter->initializer.mean) << name;
      EXPECT_EQ(parameter->grad.data_as<float>()[i], 0) << name;
    }
  }
}

TEST_F(ModuleTest, TiedWeightGetsBothGradients) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Tape tape(*stream_, *ops_);
  ASSERT_OK(pair_.Forward(Ones({1, 2}), tape));
  ASSERT_OK(pair_.Backward(Ones({1, 2}), tape));
  ASSERT_OK(stream_->Synchronize());
  // y = (x W) W^T: each use of W = 1 passes on 2 from the other side, one as input and one as gradient.
  const Tensor grad = pair_.NamedParameters()[1].second->grad;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(grad.data_as<float>()[i], 2 + 2) << i;
}

TEST_F(ModuleTest, FrozenParameterGetsNoGradient) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  const std::shared_ptr<Parameter> bias = pair_.NamedParameters()[2].second;
  bias->requires_grad = false;
  bias->grad = Tensor();
  Tape tape(*stream_, *ops_);
  ASSERT_OK(pair_.Forward(Ones({1, 2}), tape));
  EXPECT_OK(pair_.Backward(Ones({1, 2}), tape));
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(ModuleTest, BackwardTwiceIsRefused) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Tape tape(*stream_, *ops_);
  ASSERT_OK(pair_.Forward(Ones({1, 2}), tape));
  ASSERT_OK(pair_.Backward(Ones({1, 2}), tape));
  EXPECT_THAT(pair_.Backward(Ones({1, 2}), tape),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing is saved on this tape")));
}

TEST_F(ModuleTest, EvaluationSavesNothing) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Tape tape(*stream_, *ops_, /*keep_for_backward=*/false);
  ASSERT_OK(pair_.Forward(Ones({1, 2}), tape));
  EXPECT_THAT(tape.Restore(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not keep for backward")));
}

TEST_F(ModuleTest, WrongWidthIsRefusedWithBothSizes) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(pair_.Forward(Ones({4, 3}), tape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("conv1d: input [4, 3] != wanted [..., 2]")));
}

TEST_F(ModuleTest, AModuleMayTakeAndGiveSeveralTensors) {
  MaskedPair pair;
  Tape tape(*stream_, *ops_);
  const absl::StatusOr<TensorList> out = pair.Forward({Ones({2}), Ones({2})}, tape);
  ASSERT_OK(out);
  const absl::StatusOr<TensorList> grads = pair.Backward({Ones({2}), Ones({2})}, tape);
  ASSERT_OK(grads);
  ASSERT_OK(stream_->Synchronize());
  ASSERT_EQ(out->size(), 2u);
  EXPECT_EQ((*out)[0].data_as<float>()[1], 2);
  EXPECT_EQ((*out)[1].data_as<float>()[1], 1);
  ASSERT_EQ(grads->size(), 2u);
  EXPECT_EQ((*grads)[0].data_as<float>()[1], 2);
  EXPECT_FALSE((*grads)[1].defined());
}

TEST_F(ModuleTest, InputsAndGradientsMayBeLeftOut) {
  MaskedPair pair;
  for (const bool recompute : {false, true}) {
    pair.set_recompute(recompute);
    pair.seen.clear();
    Tape tape(*stream_, *ops_);
    ASSERT_OK(pair.Forward({Ones({2}), Tensor()}, tape));
    ASSERT_OK(pair.Backward({Ones({2}), Tensor()}, tape));
    EXPECT_EQ(pair.seen, recompute ? std::vector<bool>({false, false, false}) : std::vector<bool>({false, false}));
  }
}

TEST_F(ModuleTest, AnotherNumberOfTensorsThanAModuleHasIsRefusedByItsName) {
  MaskedPair pair;
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(
      pair_.Forward({Ones({1, 2}), Ones({1, 2})}, tape),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TiedPair: forward takes 1 tensor and was given 2")));
  EXPECT_THAT(
      pair_.Backward(TensorList(), tape),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TiedPair: backward takes 1 tensor and was given 0")));
  Sequential two(std::make_unique<MaskedPair>());
  EXPECT_THAT(two.Forward(Ones({1}), tape), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x and a mask")));
}

TEST_F(ModuleTest, OneTensorIsAskedOfAModuleThatGivesTwo) {
  Sequential two;
  class Twice final : public Module {
    std::string_view type_name() const override { return "Twice"; }
    absl::StatusOr<TensorList> DoForwardList(const TensorList& in, Tape&) override { return TensorList{in[0], in[0]}; }
  };
  two.Append(std::make_unique<Twice>());
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(two.Forward(Ones({1}), tape),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Sequential: forward gives 2; a module of several is called with a TensorList")));
  EXPECT_THAT(two.Backward(TensorList{Ones({1})}, tape),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Twice has neither DoBackward nor DoBackwardList")));
}

TEST_F(ModuleTest, SequentialPassesListsOnAndRunsBackwardInReverse) {
  Sequential model(std::make_unique<MaskedPair>(), std::make_unique<MaskedPair>());
  Tape tape(*stream_, *ops_);
  const absl::StatusOr<TensorList> out = model.Forward({Ones({1}), Ones({1})}, tape);
  ASSERT_OK(out);
  ASSERT_OK(stream_->Synchronize());
  // (1, 1) to (2, 1) to (3, 2).
  EXPECT_EQ((*out)[0].data_as<float>()[0], 3);
  EXPECT_EQ((*out)[1].data_as<float>()[0], 2);
  EXPECT_THAT(ParameterNames(model), ElementsAre());
  Sequential empty;
  EXPECT_EQ(empty.Forward(Ones({1}), tape)->data_as<float>()[0], 1);
}

// Records the calls.
class Journal final : public ModuleHooks {
 public:
  absl::Status PreForward(Module& module, absl::Span<Tensor>, Tape&) override { return Note("pre forward", module); }
  absl::Status PostForward(Module& module, absl::Span<Tensor>, Tape&) override { return Note("post forward", module); }
  absl::Status PreBackward(Module& module, absl::Span<Tensor>, Tape&) override { return Note("pre backward", module); }
  absl::Status PostBackward(Module& module, absl::Span<Tensor>, Tape&) override {
    return Note("post backward", module);
  }

  std::vector<std::string> lines;
  absl::Status result;

 private:
  absl::Status Note(const std::string& what, const Module& module) {
    lines.push_back(what + " " + std::string(module.type_name()));
    return result;
  }
};

TEST_F(ModuleTest, HooksSurroundTheModulesThatHaveThem) {
  ASSERT_OK(pair_.Materialize(*device_, /*seed=*/1));
  Journal journal;
  pair_.set_hooks(&journal);
  pair_.children()[1].second->set_hooks(&journal);
  Tape tape(*stream_, *ops_);
  ASSERT_OK(pair_.Forward(Ones({1, 2}), tape));
  ASSERT_OK(pair_.Backward(Ones({1, 2}), tape));
  EXPECT_THAT(journal.lines, ElementsAre("pre forward TiedPair", "pre forward Linear", "post forward Linear",
                                         "post forward TiedPair", "pre backward TiedPair", "pre backward Linear",
                                         "post backward Linear", "post backward TiedPair"));
}

TEST_F(ModuleTest, FailedHookStopsTheForward) {
  Journal journal;
  journal.result = absl::UnavailableError("no peer");
  pair_.set_hooks(&journal);
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(pair_.Forward(Ones({1, 2}), tape), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no peer")));
  EXPECT_EQ(journal.lines.size(), 1u);
}

// A persistent buffer, and a child with a buffer that is not persistent.
class Tables final : public Module {
 public:
  Tables() {
    AddChild("inner", std::make_unique<Tables>(BufferPersistence::kNonPersistent));
    AddBuffer("table", Tensor(Buffer(), DType::kBFloat16, {0}));
  }
  explicit Tables(BufferPersistence persistence) {
    AddBuffer("cache", Tensor(Buffer(), DType::kInt64, {0}), persistence);
  }
  std::string_view type_name() const override { return "Tables"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape&) override { return x; }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad, Tape&) override { return grad; }
};

TEST(ModuleBufferTest, BuffersHaveDottedNamesAndTheirOriginalDtype) {
  Tables tables;
  tables.AssignNames();
  const std::vector<Module::NamedBuffer> buffers = tables.NamedBuffers();
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].first, "table");
  EXPECT_EQ(buffers[0].second->dtype, DType::kBFloat16);
  EXPECT_EQ(buffers[1].second->fqn, "inner.cache");
  EXPECT_EQ(buffers[1].second->persistence, BufferPersistence::kNonPersistent);
  EXPECT_TRUE(tables.NamedParameters().empty());
}

}  // namespace
}  // namespace fsdp
