// SPDX-License-Identifier: Apache-2.0
//
// param_dtype_override_fn: parameters that keep float32 within a unit that computes in bfloat16 train to the bits of a
// unit of their own without mixed precision.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A layer that computes in float32 whatever its input is, as a router does.
class Router final : public Module {
 public:
  Router(int64_t in, int64_t out) {
    inner_ = AddChild("inner", std::make_unique<Conv1D>(in, out, Initializer::Normal(0, 0.5f)));
  }
  std::string_view type_name() const override { return "Router"; }

 private:
  static absl::StatusOr<Tensor> Cast(const Tensor& t, DType dtype, Tape& tape) {
    if (t.dtype() == dtype) return t;
    FSDP_ASSIGN_OR_RETURN(const Tensor cast, tape.EmptyLike(t, dtype));
    tape.device().ops().CastDivide(t, cast, 1, tape.stream());
    return cast;
  }
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override {
    dtype_ = x.dtype();
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, Cast(x, DType::kFloat32, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor y, inner_->Forward(wide, tape));
    return Cast(y, dtype_, tape);
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, Cast(grad_output, DType::kFloat32, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, inner_->Backward(wide, tape));
    return Cast(grad, dtype_, tape);
  }

  Module* inner_;
  DType dtype_ = DType::kFloat32;
};

std::optional<DType> RoutersInFloat32(const Parameter& parameter) {
  if (!absl::StrContains(parameter.fqn, "inner")) return std::nullopt;
  return DType::kFloat32;
}

struct RouterModel {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<TestSequence> model = std::make_unique<TestSequence>();
  FsdpModule* root = nullptr;

  // root > 0 (Block) > 0 (3 to 5), 1 (router 5 to 5), 2 (5 to 4); root > 1 (router 4 to 4), 2 (4 to 7). With `apart`
  // each router is a unit.
  static absl::StatusOr<RouterModel> Make(std::shared_ptr<ProcessGroup> inner, const FullyShardOptions& options,
                                          bool apart, int replicas = 1) {
    RouterModel made;
    made.group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", made.log);
    TestSequence* const block = made.model->AddSequence("Block");
    block->AddLinear(3, 5);
    block->Add(std::make_unique<Router>(5, 5));
    block->AddLinear(5, 4);
    made.model->Add(std::make_unique<Router>(4, 4));
    made.model->AddLinear(4, 7);
    std::vector<int> sizes = {made.group->size() / replicas};
    std::vector<std::string> names = {"shard"};
    if (replicas > 1) {
      sizes.insert(sizes.begin(), replicas);
      names.insert(names.begin(), "replicate");
    }
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, DeviceMesh::Create(made.group, sizes, names));
    FullyShardOptions of_router = options, of_others = options;
    of_router.mp_policy = {.reduce_dtype = options.mp_policy.reduce_dtype};
    if (!apart) of_others.mp_policy.param_dtype_override_fn = RoutersInFloat32;
    for (const auto& [name, module] : made.model->NamedModules()) {
      if (apart && module->type_name() == "Router") FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, of_router).status());
    }
    FSDP_RETURN_IF_ERROR(FullyShard(*block, mesh, of_others).status());
    FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*made.model, mesh, of_others));
    return made;
  }

  absl::Status ForwardAndBackward(int step) const {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, 3}));
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data_as<float>()[i] = 0.25f * static_cast<float>((group->rank() + 1) * (i - 2) + step);
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
    return tape.stream().Synchronize();
  }

  absl::Status ZeroGrad() const {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    for (ShardedParameter* parameter : parameters) parameter->has_grad = false;
    return absl::OkStatus();
  }

  absl::StatusOr<Gradients> GradientsNow() const {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    Gradients gradients;
    for (const ShardedParameter* parameter : parameters) {
      if (!parameter->has_grad) continue;
      const float* const grad = parameter->grad.data_as<float>();
      gradients[parameter->fqn].assign(grad, grad + parameter->grad.numel());
    }
    return gradients;
  }
};

struct Case {
  int ranks, replicas;
  FullyShardOptions options;
};

std::vector<Case> Cases() {
  const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  return {{1, 1, {.mp_policy = mixed}},
          {3, 1, {.mp_policy = mixed}},
          {4, 2, {.mp_policy = mixed}},
          {2, 2, {.mp_policy = mixed}},
          {3, 1, {.mp_policy = {.param_dtype = DType::kBFloat16}}},
          {3, 1, {.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kBFloat16}}},
          {4, 1, {.reshard_after_forward = 2, .mp_policy = mixed}},
          {3, 1, {.mp_policy = mixed, .offload_policy = CpuOffloadPolicy{}, .activation_checkpointing = true}}};
}

TEST(ParamDTypeOverrideTest, TheBitsAreThoseOfUnitsOfTheirOwnInFullPrecision) {
  for (const Case& one : Cases()) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const RouterModel test, RouterModel::Make(group, one.options, false, one.replicas));
      FSDP_ASSIGN_OR_RETURN(const RouterModel apart, RouterModel::Make(group, one.options, true, one.replicas));
      for (const bool accumulates : {false, true}) {
        Gradients gradients[2];
        for (const RouterModel* model : {&test, &apart}) {
          if (accumulates) {
            FSDP_RETURN_IF_ERROR(model->root->parameters().status());
            FSDP_RETURN_IF_ERROR(model->root->set_requires_gradient_sync(false));
            FSDP_RETURN_IF_ERROR(model->ForwardAndBackward(7));
            FSDP_RETURN_IF_ERROR(model->root->set_requires_gradient_sync(true));
          }
          for (const int step : {0, 1}) FSDP_RETURN_IF_ERROR(model->ForwardAndBackward(step));
          FSDP_ASSIGN_OR_RETURN(gradients[model == &apart], model->GradientsNow());
          FSDP_RETURN_IF_ERROR(model->ZeroGrad());
        }
        EXPECT_EQ(gradients[0], gradients[1]);
        EXPECT_EQ(gradients[0].size(), 10u);
      }
      return absl::OkStatus();
    }));
  }
}

TEST(ParamDTypeOverrideTest, AUnitIsGatheredOnceAndReducedByDType) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    FSDP_ASSIGN_OR_RETURN(const RouterModel test, RouterModel::Make(group, {.mp_policy = mixed}, false));
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    test.log->clear();
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward(0));
    EXPECT_EQ(CountEntries(*test.log, "all_gather"), 3);  // the block twice, the root once
    EXPECT_EQ(CountEntries(*test.log, "all_gather world uint8"), 3);
    EXPECT_EQ(CountEntries(*test.log, "reduce_scatter avg world float32"), 4);
    return absl::OkStatus();
  }));
}

TEST(ParamDTypeOverrideTest, GroupsAreFrozenAndThawedByThemselves) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    FSDP_ASSIGN_OR_RETURN(const RouterModel test, RouterModel::Make(group, {.mp_policy = mixed}, false));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward(0));
    FSDP_ASSIGN_OR_RETURN(const Gradients all, test.GradientsNow());
    for (const std::string trained : {"inner", "weight", "bias", ""}) {
      FSDP_RETURN_IF_ERROR(test.ZeroGrad());
      Gradients wanted;
      for (const auto& [name, parameter] : test.model->NamedParameters()) {
        parameter->requires_grad = absl::StrContains(name, trained);
        if (parameter->requires_grad) wanted[name] = all.at(name);
      }
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward(0));
      FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.GradientsNow());
      EXPECT_EQ(gradients, wanted) << trained;
    }
    return absl::OkStatus();
  }));
}

TEST(ParamDTypeOverrideTest, SettingsOfAModuleAreOfBothReductions) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    Gradients gradients[2][2];
    for (const bool apart : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(const RouterModel test, RouterModel::Make(group, {.mp_policy = mixed}, apart));
      for (const bool set : {false, true}) {
        for (const auto& [name, module] : test.model->NamedModules()) {
          FsdpModule* const unit = FsdpModule::Of(*module);
          if (set && unit != nullptr) FSDP_RETURN_IF_ERROR(unit->set_gradient_divide_factor(8));
        }
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward(0));
        FSDP_ASSIGN_OR_RETURN(gradients[apart][set], test.GradientsNow());
        FSDP_RETURN_IF_ERROR(test.ZeroGrad());
      }
    }
    EXPECT_EQ(gradients[false][true], gradients[true][true]);
    for (const auto& [name, values] : gradients[false][false]) {
      EXPECT_EQ(gradients[false][true].at(name) == values, values.empty()) << name;
    }
    return absl::OkStatus();
  }));
}

TEST(ParamDTypeOverrideTest, AnotherDTypeIsRefusedWithTheParametersName) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto model = MakeTestBlocks();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    const auto override_fn = [](const Parameter& parameter) -> std::optional<DType> {
      if (absl::EndsWith(parameter.fqn, "bias")) return DType::kFloat16;
      return std::nullopt;
    };
    FSDP_ASSIGN_OR_RETURN(
        FsdpModule * root,
        FullyShard(*model, mesh,
                   {.mp_policy = {.param_dtype = DType::kBFloat16, .param_dtype_override_fn = override_fn}}));
    EXPECT_THAT(root->parameters().status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("param_dtype_override_fn returned float16, but parameter \"0.0.bias\" is "
                                         "float32"),
                               HasSubstr("expected its dtype, param_dtype (bfloat16) or nothing"))));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
