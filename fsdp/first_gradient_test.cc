// SPDX-License-Identifier: Apache-2.0
//
// The memory of a unit's gradient holds anything when its backward begins: the first gradient of a parameter replaces
// it, others add, and what has no gradient becomes zero. A backward of NaNs leaves NaNs in all of that memory, so they
// would be in the gradients of the next one.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/nn/convolution.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

enum class Api { kFlat, kOriginal, kFullyShard };

struct Variant {
  std::string name;
  Api api = Api::kFlat;
  bool recompute = false;
  bool low_precision = false;
};

// GPT-2 has a tied head and, with 5 tokens of 7, positions without a gradient.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeGpt2Of(const Variant& variant,
                                                                     std::shared_ptr<ProcessGroup> group) {
  if (variant.api != Api::kFullyShard) {
    FsdpOptions options = BlockOptions();
    options.use_orig_params = variant.api == Api::kOriginal;
    options.activation_checkpointing = variant.recompute;
    if (variant.low_precision) {
      options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    }
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(std::move(group), options));
    return std::move(made.model);
  }
  FullyShardOptions options{.activation_checkpointing = variant.recompute, .init_seed = 11};
  if (variant.low_precision) {
    options.mp_policy.param_dtype = DType::kBFloat16;
    options.mp_policy.reduce_dtype = DType::kFloat32;
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  for (const auto& [name, below] : module->NamedModules()) {
    if (dynamic_cast<Gpt2Block*>(below) != nullptr) FSDP_RETURN_IF_ERROR(FullyShard(*below, mesh, options).status());
  }
  options.activation_checkpointing = false;
  FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
  return FullyShardedDataParallel::FromFullyShard(std::move(module));
}

// Forwards and backwards, a letter each: 's' with synchronisation, 'u' without. With `nan` every gradient is NaN.
absl::Status Backwards(FullyShardedDataParallel& model, const std::string& pattern, bool nan) {
  for (size_t step = 0; step < pattern.size(); ++step) {
    model.set_requires_gradient_sync(pattern[step] == 's');
    FSDP_ASSIGN_OR_RETURN(const TestBatch batch,
                          TestBatchOf(model.device(), static_cast<int>(step), model.group().rank()));
    Tape tape = model.NewTape();
    CrossEntropyLoss loss;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
    FSDP_RETURN_IF_ERROR(loss.Forward(logits, batch.targets, tape).status());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, loss.Backward(nan ? std::numeric_limits<float>::quiet_NaN() : 1.0f, tape));
    FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
    FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  }
  return absl::OkStatus();
}

void Forget(FullyShardedDataParallel& model) {
  for (ShardedParameter* parameter : model.parameters()) parameter->has_grad = false;
}

class FirstGradientTest : public testing::TestWithParam<Variant> {};

TEST_P(FirstGradientTest, NothingThatABackwardLeftInMemoryIsInTheNextOne) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::string pattern : {"s", "us", "uus"}) {
      SCOPED_TRACE(pattern + " on " + std::to_string(ranks));
      WholeTensors clean, after_nan;
      ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        for (const bool nan_before : {false, true}) {
          FSDP_ASSIGN_OR_RETURN(const auto model, MakeGpt2Of(GetParam(), group));
          if (nan_before) {
            FSDP_RETURN_IF_ERROR(Backwards(*model, "us", /*nan=*/true));
            Forget(*model);
          }
          FSDP_RETURN_IF_ERROR(Backwards(*model, pattern, /*nan=*/false));
          (nan_before ? after_nan : clean).AddGradients(model->parameters());
        }
        return absl::OkStatus();
      }));
      EXPECT_FALSE(clean.empty());
      EXPECT_TRUE(after_nan == clean);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, FirstGradientTest,
                         testing::Values(Variant{"Flat", Api::kFlat}, Variant{"Original", Api::kOriginal},
                                         Variant{"FullyShard", Api::kFullyShard},
                                         Variant{"FlatRecomputed", Api::kFlat, /*recompute=*/true},
                                         Variant{"FullyShardRecomputed", Api::kFullyShard, /*recompute=*/true},
                                         Variant{"FlatLow", Api::kFlat, false, /*low_precision=*/true},
                                         Variant{"FullyShardLow", Api::kFullyShard, false, /*low_precision=*/true}),
                         [](const auto& variant) { return variant.param.name; });

// Two images of a convolution, a linear layer that runs twice, and a parameter that no backward uses.
TEST(FirstGradientOfLayersTest, ALayerThatRunsTwiceAddsAndAnUnusedParameterHasZero) {
  for (const bool frozen : {false, true}) {
    std::vector<std::vector<float>> clean, after_nan;
    ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      for (const bool nan_before : {false, true}) {
        auto root = std::make_unique<TestSequence>();
        root->Add(std::make_unique<Conv1d>(ConvolutionOptions{.in_channels = 2, .out_channels = 2, .groups = 2}));
        Conv1D* const linear = root->AddLinear(3, 3);
        const auto unused = root->AddUnused("unused", {5});
        unused->requires_grad = !frozen;
        root->Add(std::make_unique<Linear>(linear->own_parameters()[0].second));
        FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(
                                                    std::move(root), group, {.use_orig_params = true, .init_seed = 3}));
        const auto backward = [&](float scale) -> absl::Status {
          FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model->device(), DType::kFloat32, {2, 2, 3}));
          for (int i = 0; i < x.numel(); ++i) x.data_as<float>()[i] = 0.25f * static_cast<float>(i - 5);
          Tape tape = model->NewTape();
          FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
          FSDP_ASSIGN_OR_RETURN(const Tensor grad, Tensor::Empty(model->device(), DType::kFloat32, y.shape()));
          std::fill_n(grad.data_as<float>(), grad.numel(), scale);
          FSDP_RETURN_IF_ERROR(model->Backward(grad, tape).status());
          return model->stream().Synchronize();
        };
        if (nan_before) {
          FSDP_RETURN_IF_ERROR(backward(std::numeric_limits<float>::quiet_NaN()));
          Forget(*model);
        }
        FSDP_RETURN_IF_ERROR(backward(1));
        for (const ShardedParameter* p : model->parameters()) {
          if (!p->grad.defined()) continue;
          const float* grad = p->grad.data_as<float>();
          const std::vector<float> values(grad, grad + p->grad.numel());
          if (p->fqn == "unused") {
            EXPECT_EQ(values, std::vector<float>(5, 0.0f));
          }
          (nan_before ? after_nan : clean).push_back(values);
        }
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(clean.size(), frozen ? 4u : 5u);
    EXPECT_EQ(after_nan, clean);
  }
}

TEST(UnwrittenGradientTest, WhatNoBackwardWroteBecomesZeroAndTheRestStays) {
  for (const int ranks : {1, 4}) {  // 4 have padding at the end
    ASSERT_OK(RunRanks(ranks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const int rank = group->rank();
      FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(std::move(group), rank, UnitSettings()));
      const Unit& unit = made.units->unit(1);
      UnitRuntime& runtime = made.executor->runtime();
      FSDP_RETURN_IF_ERROR(runtime.gradients().Bind(1, GradientReduction::Sync::kReduce));
      FSDP_RETURN_IF_ERROR(runtime.Synchronize());
      const Tensor grad = unit.state.gradients.grad;
      std::memset(grad.data(), 0xff, grad.nbytes());  // NaN
      std::vector<float> wanted(grad.numel(), 0.0f);
      for (const size_t i : {3, 4}) {  // the first is replaced, the second zeroed and added to
        Parameter& parameter = *unit.parameters[i];
        if (i == 4) FSDP_RETURN_IF_ERROR(parameter.Grad().status());
        FSDP_RETURN_IF_ERROR(runtime.Synchronize());
        FSDP_ASSIGN_OR_RETURN(const ParameterGrad to, parameter.GradToWrite());
        EXPECT_EQ(to.accumulate, i == 4);
        FSDP_ASSIGN_OR_RETURN(const ParameterGrad next, parameter.GradToWrite());
        EXPECT_TRUE(next.accumulate);
        for (int64_t j = 0; j < to.grad.numel(); ++j) {
          float& element = to.grad.data_as<float>()[j];
          element = (to.accumulate ? element : 0) + 1;
          wanted[unit.grad_layout.parameters()[i].offset + j] = 1;
        }
      }
      runtime.gradients().Unbind(1, GradientReduction::Sync::kReduce);
      FSDP_RETURN_IF_ERROR(runtime.Synchronize());
      EXPECT_EQ(std::vector<float>(grad.data_as<float>(), grad.data_as<float>() + grad.numel()), wanted);
      runtime.gradients().Discard();
      return runtime.Synchronize();
    }));
  }
}

// Rows that no rank count divides leave padding after each parameter.
TEST(UnwrittenGradientTest, AUnitWithManyPlacesOfPaddingIsZeroedWhole) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int rank = group->rank();
    FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(std::move(group), rank, Fsdp2Settings()));
    const Unit& unit = made.units->unit(1);
    UnitRuntime& runtime = made.executor->runtime();
    for (int backward = 0; backward < 2; ++backward) {
      FSDP_RETURN_IF_ERROR(runtime.gradients().Bind(1, GradientReduction::Sync::kReduce));
      FSDP_RETURN_IF_ERROR(runtime.Synchronize());
      const Tensor grad = unit.state.gradients.grad;
      EXPECT_EQ(std::vector<float>(grad.data_as<float>(), grad.data_as<float>() + grad.numel()),
                std::vector<float>(grad.numel(), 0.0f));
      for (const auto& parameter : unit.parameters) {
        FSDP_ASSIGN_OR_RETURN(const ParameterGrad to, parameter->GradToWrite());
        EXPECT_TRUE(to.accumulate) << parameter->fqn;
      }
      std::memset(grad.data(), 0xff, grad.nbytes());  // of the slot, for the next
      runtime.gradients().Discard();
      FSDP_RETURN_IF_ERROR(runtime.Synchronize());
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
