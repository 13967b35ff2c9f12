// SPDX-License-Identifier: Apache-2.0
//
// Every field of MixedPrecision and MixedPrecisionPolicy, by the dtypes that the modules inside receive.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/units/unit_settings.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr DType kLow = DType::kBFloat16;
constexpr DType kFull = DType::kFloat32;

// The dtypes that a Probe saw in its last forward and backward.
struct Seen {
  DType input = DType::kUInt8, parameter = DType::kUInt8, buffer = DType::kUInt8, grad_output = DType::kUInt8;
};

// Passes its input on, in the dtype of its parameter, and notes dtypes.
class Probe final : public Module {
 public:
  explicit Probe(std::string type_name = "Probe") : type_name_(std::move(type_name)) {
    weight_ = AddParameter("weight", {5}, Initializer::Constant(1));
    buffer_ = AddBuffer("table", Tensor(Buffer::Unowned(values_, sizeof(values_)), kFull, {2}));
  }
  std::string_view type_name() const override { return type_name_; }
  const Seen& seen() const { return seen_; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    seen_.input = input.dtype();
    seen_.parameter = weight_->data.dtype();
    seen_.buffer = buffer_->data.dtype();
    FSDP_ASSIGN_OR_RETURN(const Tensor output, tape.Empty(weight_->data.dtype(), input.shape()));
    tape.device().ops().CastDivide(input, output, 1, tape.stream());
    return output;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape&) override {
    seen_.grad_output = grad_output.dtype();
    return grad_output;
  }

  const std::string type_name_;
  float values_[2] = {1, 2};
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<ModuleBuffer> buffer_;
  Seen seen_;
};

struct Outcome {
  Seen root, inner;
  DType output = DType::kUInt8, grad_input = DType::kUInt8;
  std::vector<DType> grads;  // as the optimizer gets them: root, inner
  RecordingProcessGroup::Log log;
};

// A root probe before an inner unit.
absl::StatusOr<Outcome> Observe(FsdpOptions options, bool training = true, int world_size = 2,
                                const char* inner_type = "Probe") {
  Outcome outcome;
  FSDP_RETURN_IF_ERROR(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    auto log = std::make_shared<RecordingProcessGroup::Log>();
    auto group = std::make_shared<RecordingProcessGroup>(world, "world", log);
    auto root = std::make_unique<TestSequence>();
    Probe* first = root->Add(std::make_unique<Probe>("RootProbe"));
    Probe* inner = root->Add(std::make_unique<Probe>(inner_type));
    if (!options.auto_wrap_policy) {
      options.auto_wrap_policy = LambdaWrapPolicy([](Module& module) { return module.type_name() == "Probe"; });
    }
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
    Tape tape = model->NewTape(training);
    FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(kFull, {3}));
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    Tensor grad;
    if (training) {
      FSDP_ASSIGN_OR_RETURN(grad, model->Backward(y, tape));
    }
    FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    if (world->rank() != 0) return absl::OkStatus();
    outcome = {first->seen(), inner->seen(), y.dtype(), grad.defined() ? grad.dtype() : DType::kUInt8, {}, *log};
    for (const ShardedParameter* p : model->parameters()) outcome.grads.push_back(p->grad.dtype());
    return absl::OkStatus();
  }));
  return outcome;
}

FsdpOptions With(const MixedPrecision& precision) {
  FsdpOptions options;
  options.mixed_precision = precision;
  return options;
}

TEST(MixedPrecisionTest, WithoutItNothingIsCast) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe({}));
  EXPECT_EQ(o.root.input, kFull);
  EXPECT_EQ(o.root.parameter, kFull);
  EXPECT_EQ(o.output, kFull);
}

TEST(MixedPrecisionTest, ParamDtypeIsThatOfComputeAndGathersAndReductions) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(With({.param_dtype = kLow})));
  EXPECT_EQ(o.root.parameter, kLow);
  EXPECT_EQ(o.inner.parameter, kLow);
  EXPECT_EQ(CountEntries(o.log, "all_gather world bfloat16"), static_cast<int>(CountEntries(o.log, "all_gather")));
  EXPECT_EQ(CountEntries(o.log, "reduce_scatter world bfloat16"), 2);
  EXPECT_THAT(o.grads, testing::Each(kFull));
}

TEST(MixedPrecisionTest, ReduceDtypeIsThatOfReductionsAlone) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(With({.param_dtype = kLow, .reduce_dtype = kFull})));
  EXPECT_EQ(CountEntries(o.log, "reduce_scatter world float32"), 2);
  ASSERT_OK_AND_ASSIGN(const Outcome r, Observe(With({.reduce_dtype = kLow})));
  EXPECT_EQ(r.root.parameter, kFull);
  EXPECT_EQ(CountEntries(r.log, "reduce_scatter world bfloat16"), 2);
  EXPECT_EQ(CountEntries(r.log, "all_gather world float32"), CountEntries(r.log, "all_gather"));
}

// The gradient of a bias on two ranks, 256 and 1, in bfloat16: their mean, 128.5, is representable in float32 but not
// in bfloat16.
TEST(MixedPrecisionTest, OneReducedGradientTellsTheReduceDtypesApart) {
  for (const DType reduce_dtype : {kFull, kLow}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      auto root = std::make_unique<TestSequence>();
      root->AddLinear(3, 5);
      FSDP_ASSIGN_OR_RETURN(auto model,
                            FullyShardedDataParallel::Wrap(std::move(root), group,
                                                           With({.param_dtype = kLow, .reduce_dtype = reduce_dtype})));
      Tape tape = model->NewTape();
      FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(kFull, {2, 3}));
      FSDP_ASSIGN_OR_RETURN(const Tensor grad, tape.Empty(kFull, {2, 5}));
      FSDP_ASSIGN_OR_RETURN(const Tensor low_grad, tape.Empty(kLow, {2, 5}));
      std::fill_n(x.data_as<float>(), x.numel(), 0.0f);
      std::fill_n(grad.data_as<float>(), grad.numel(), group->rank() == 0 ? 128.0f : 0.5f);
      tape.device().ops().CastDivide(grad, low_grad, 1, tape.stream());
      FSDP_RETURN_IF_ERROR(model->Forward(x, tape).status());
      FSDP_RETURN_IF_ERROR(model->Backward(low_grad, tape).status());
      FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
      for (const ShardedParameter* p : model->parameters()) {
        if (p->fqn != "0.bias") continue;
        for (int64_t i = 0; i < p->grad.numel(); ++i) {
          EXPECT_EQ(p->grad.data_as<float>()[i], reduce_dtype == kFull ? 128.5f : 128.0f);
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(MixedPrecisionTest, TheRootCastsItsInputsUnlessThatIsSwitchedOff) {
  ASSERT_OK_AND_ASSIGN(const Outcome casts, Observe(With({.param_dtype = kLow})));
  EXPECT_EQ(casts.root.input, kLow);
  EXPECT_EQ(casts.grad_input, kFull);  // back in the dtype that came in
  ASSERT_OK_AND_ASSIGN(const Outcome not_cast, Observe(With({.param_dtype = kLow, .cast_root_forward_inputs = false})));
  EXPECT_EQ(not_cast.root.input, kFull);
  // As in PyTorch's code, not its text: the root casts if either field is on.
  ASSERT_OK_AND_ASSIGN(
      const Outcome either,
      Observe(With({.param_dtype = kLow, .cast_forward_inputs = true, .cast_root_forward_inputs = false})));
  EXPECT_EQ(either.root.input, kLow);
}

// An inner unit in lower precision than the root gets the root's output, unless it casts.
TEST(MixedPrecisionTest, InnerUnitsCastTheirInputsOnlyIfThatIsSwitchedOn) {
  for (const bool casts : {false, true}) {
    FsdpOptions options;
    options.auto_wrap_policy = CustomWrapPolicy([casts](Module& module) -> std::optional<UnitOverrides> {
      if (module.type_name() != "Probe") return std::nullopt;
      return UnitOverrides{.mixed_precision = MixedPrecision{.param_dtype = kLow, .cast_forward_inputs = casts}};
    });
    ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(options));
    EXPECT_EQ(o.root.parameter, kFull);
    EXPECT_EQ(o.inner.parameter, kLow);
    EXPECT_EQ(o.inner.input, casts ? kLow : kFull);
    EXPECT_EQ(o.inner.grad_output, kLow);
  }
}

TEST(MixedPrecisionTest, CastForwardInputsWithoutParamDtypeCastsNothing) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(With({.reduce_dtype = kLow, .cast_forward_inputs = true})));
  EXPECT_EQ(o.root.input, kFull);
  EXPECT_EQ(o.inner.input, kFull);
}

// Not even to the parameters' own dtype, under either API.
TEST(MixedPrecisionTest, InputsOfOtherDtypesStayWithoutParamDtype) {
  for (const bool fsdp2 : {false, true}) {
    for (const DType dtype : {kLow, DType::kFloat64}) {
      ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        auto root = std::make_unique<TestSequence>();
        const Probe* const probe = root->Add(std::make_unique<Probe>());
        std::unique_ptr<FullyShardedDataParallel> model;
        if (fsdp2) {
          FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
          FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, {.mp_policy = {.reduce_dtype = kLow}}).status());
          FSDP_ASSIGN_OR_RETURN(model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
        } else {
          const FsdpOptions options = With({.reduce_dtype = kLow, .cast_forward_inputs = true});
          FSDP_ASSIGN_OR_RETURN(model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
        }
        Tape tape = model->NewTape(/*training=*/false);
        FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(dtype, {3}));
        FSDP_RETURN_IF_ERROR(model->Forward(x, tape).status());
        EXPECT_EQ(probe->seen().input, dtype);
        return model->stream().Synchronize();
      }));
    }
  }
}

TEST(MixedPrecisionTest, BufferDtypeIsThatOfFloatingPointBuffers) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(With({.buffer_dtype = kLow})));
  EXPECT_EQ(o.root.buffer, kLow);
  EXPECT_EQ(o.inner.buffer, kLow);
  EXPECT_EQ(o.root.parameter, kFull);
}

TEST(MixedPrecisionTest, IgnoredClassesKeepFullPrecisionAndGiveBackWhatCameIn) {
  ASSERT_OK_AND_ASSIGN(const Outcome o, Observe(With({.param_dtype = kLow, .reduce_dtype = kLow}), /*training=*/true,
                                                /*world_size=*/2, "BatchNorm1d"));
  EXPECT_EQ(o.root.parameter, kLow);
  EXPECT_EQ(o.inner.input, kFull);
  EXPECT_EQ(o.inner.parameter, kFull);
  EXPECT_EQ(o.output, kLow);
  EXPECT_EQ(o.inner.grad_output, kFull);
}

TEST(MixedPrecisionTest, EvaluationMayBeInFullPrecision) {
  FsdpOptions options = With({.param_dtype = kLow});
  options.full_precision_in_eval = true;
  for (const int world_size : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(const Outcome eval, Observe(options, /*training=*/false, world_size));
    EXPECT_EQ(eval.root.input, kFull);
    EXPECT_EQ(eval.inner.parameter, kFull);
    EXPECT_EQ(eval.output, kFull);
    ASSERT_OK_AND_ASSIGN(const Outcome train, Observe(options, /*training=*/true, world_size));
    EXPECT_EQ(train.inner.parameter, kLow);
  }
  options.full_precision_in_eval = false;
  ASSERT_OK_AND_ASSIGN(const Outcome low, Observe(options, /*training=*/false));
  EXPECT_EQ(low.inner.parameter, kLow);
}

TEST(MixedPrecisionTest, KeptLowPrecisionGradsAreInParamDtypeOrUnshardedInReduceDtype) {
  MixedPrecision keep{.param_dtype = kLow, .reduce_dtype = DType::kFloat16, .keep_low_precision_grads = true};
  ASSERT_OK_AND_ASSIGN(const Outcome sharded, Observe(With(keep)));
  EXPECT_THAT(sharded.grads, testing::Each(kLow));
  ASSERT_OK_AND_ASSIGN(const Outcome whole, Observe(With(keep), true, /*world_size=*/1));
  EXPECT_THAT(whole.grads, testing::Each(DType::kFloat16));
}

TEST(MixedPrecisionTest, KeptLowPrecisionGradsRoundWhatFullPrecisionAccumulated) {
  WholeTensors kept, full;
  for (const bool keep : {true, false}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options = BlockOptions();
      options.mixed_precision = {.param_dtype = kLow, .reduce_dtype = kFull, .keep_low_precision_grads = keep};
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
      (keep ? kept : full).AddGradients(made.model->parameters());
      return absl::OkStatus();
    }));
  }
  for (const auto& [name, values] : full.tensors()) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(kept.tensors().at(name)[i], values[i], std::abs(values[i]) / 256) << name;
    }
  }
  EXPECT_FALSE(kept == full);
}

// As PyTorch documents: parameters are whole in the original dtype, buffers stay as they were cast.
TEST(MixedPrecisionTest, SummonedParametersHaveTheOriginalDtypeAndBuffersTheirCastOne) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto model,
                          FullyShardedDataParallel::Wrap(std::make_unique<Probe>(), group,
                                                         With({.param_dtype = kLow, .buffer_dtype = kLow})));
    FSDP_ASSIGN_OR_RETURN(const auto guard, model->SummonFullParams());
    for (const auto& [name, parameter] : model->module().NamedParameters()) {
      EXPECT_EQ(parameter->data.dtype(), kFull);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(parameter->data.data_as<float>()[i], 1);
    }
    for (const auto& [name, buffer] : model->module().NamedBuffers()) EXPECT_EQ(buffer->data.dtype(), kLow);
    return guard->Close();
  }));
}

// FSDP2's policy, through the settings that it is translated to.
TEST(MixedPrecisionPolicyTest, CastsInputsAndOutputsOfEveryUnit) {
  UnitSettings settings;
  ApplyPolicy({.param_dtype = kLow, .reduce_dtype = kFull, .output_dtype = kFull}, settings);
  EXPECT_EQ(settings.param_dtype, kLow);
  EXPECT_EQ(settings.output_dtype, kFull);
  EXPECT_TRUE(settings.cast_inputs);
  ApplyPolicy({.cast_forward_inputs = true}, settings);
  EXPECT_FALSE(settings.cast_inputs) << "without a param_dtype there is nothing to cast to";
}

TEST(MixedPrecisionPolicyTest, AUnitCastsItsInputsUnlessThatIsSwitchedOff) {
  for (const bool casts : {true, false}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(std::move(group), {2}, {"shard"}));
      TestSequence model;
      const Probe* const first = model.Add(std::make_unique<Probe>("RootProbe"));
      Probe* const inner = model.Add(std::make_unique<Probe>());
      const MixedPrecisionPolicy low{.param_dtype = kLow, .cast_forward_inputs = casts};
      FSDP_RETURN_IF_ERROR(FullyShard(*inner, mesh, {.mp_policy = low}).status());
      FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
      FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(kFull, {3}));
      FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
      FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
      FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
      EXPECT_EQ(first->seen().input, kFull);
      EXPECT_EQ(first->seen().parameter, kFull);
      EXPECT_EQ(inner->seen().input, casts ? kLow : kFull);
      EXPECT_EQ(inner->seen().parameter, kLow);
      return absl::OkStatus();
    }));
  }
}

// Gradients that wait for a reduction then need no separate memory in the reduce dtype.
TEST(MixedPrecisionPolicyTest, AReduceDtypeEqualToTheParamDtypeIsNone) {
  Gradients gradients[2];
  std::string plans[2];
  for (const bool given : {false, true}) {
    FullyShardOptions options{.mp_policy = {.param_dtype = kLow}};
    if (given) options.mp_policy.reduce_dtype = kLow;
    ASSERT_OK(RunFullyShard(2, options, [&](TestFullyShard& test) -> absl::Status {
      FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const Gradients mine, test.Gradients());
      FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
      if (test.group->rank() != 0) return absl::OkStatus();
      gradients[given] = mine;
      plans[given] = model->runtime().plan().ToString(/*accumulates=*/true);
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_FALSE(gradients[0].empty());
}

TEST(MixedPrecisionPolicyTest, OutputDtypeIsWhatTheCallerGets) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    UnitSettings settings = Fsdp2Settings();
    ApplyPolicy({.param_dtype = kLow, .output_dtype = kFull}, settings);
    FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(group, group->rank(), settings));
    for (int block : {1, 2}) made.units->unit(block).settings.output_dtype.reset();
    Stream& stream = made.executor->runtime().compute_stream();
    FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(stream.device(), 0, made.rank));
    Tape tape(stream, *made.layer_ops);
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, made.module->Forward(batch.tokens, tape));
    EXPECT_EQ(logits.dtype(), kFull);
    FSDP_RETURN_IF_ERROR(made.module->Backward(logits, tape).status());
    return made.executor->runtime().Synchronize();
  }));
}

}  // namespace
}  // namespace fsdp
