// SPDX-License-Identifier: Apache-2.0
//
// Models whose parameters are bfloat16 or float16: Module::To before sharding, under both APIs.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/tensor/convert_elements.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using Numbers = std::map<std::string, std::vector<float>>;

// Their mean is one division by a power of two, which rounds nothing.
constexpr int kRanks = 2;

std::vector<float> FloatsOf(const Tensor& t) {
  std::vector<float> numbers(t.numel());
  EXPECT_OK(Convert(t.dtype(), t.data(), DType::kFloat32, numbers.data(), t.numel()));
  return numbers;
}

// This rank's gradients, which have the dtype of their parameters.
Numbers GradientsOf(const std::vector<ShardedParameter*>& parameters) {
  Numbers gradients;
  for (const ShardedParameter* parameter : parameters) {
    EXPECT_TRUE(parameter->has_grad) << parameter->fqn;
    EXPECT_EQ(parameter->grad.dtype(), parameter->data.dtype()) << parameter->fqn;
    gradients[parameter->fqn] = FloatsOf(parameter->grad);
  }
  return gradients;
}

class ModelDTypeTest : public testing::TestWithParam<DType> {};

// A model of float32 that computes and reduces in 16 bits has the same rounded parameters, and so the same gradients.
TEST_P(ModelDTypeTest, FullyShardTakesTheDTypeThatAModuleHasAtItsFirstUse) {
  const DType dtype = GetParam();
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    Numbers gradients[2];
    for (const bool is_cast : {false, true}) {
      FullyShardOptions options;
      options.mp_policy = {.param_dtype = dtype, .reduce_dtype = dtype};
      FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(group, options));
      if (is_cast) FSDP_RETURN_IF_ERROR(test.model->To(dtype, test.device()));
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
      for (const ShardedParameter* parameter : parameters) {
        EXPECT_EQ(parameter->data.dtype(), is_cast ? dtype : DType::kFloat32) << parameter->fqn;
      }
      gradients[is_cast] = GradientsOf(parameters);
      const absl::Status late = test.model->To(DType::kFloat32, test.device());
      EXPECT_THAT(late,
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("parameter \"0.0.weight\" is sharded in")));
    }
    EXPECT_TRUE(gradients[true] == gradients[false]);
    return absl::OkStatus();
  }));
}

TEST_P(ModelDTypeTest, WrapTakesTheDTypeOfTheModule) {
  const DType dtype = GetParam();
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions mixed = BlockOptions();
    mixed.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype};
    FSDP_ASSIGN_OR_RETURN(TestModel in_float32, MakeTestModel(group, mixed));
    FSDP_ASSIGN_OR_RETURN(TestModel low, MakeTestModel(group, BlockOptions(), dtype));
    for (TestModel* made : {&in_float32, &low}) FSDP_RETURN_IF_ERROR(made->ComputeGradients(0).status());
    EXPECT_TRUE(GradientsOf(low.model->parameters()) == GradientsOf(in_float32.model->parameters()));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, low.model->GetStateDict());
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      EXPECT_EQ(tensor == nullptr ? dtype : tensor->dtype, dtype) << key.ToString();
    }
    EXPECT_THAT(low.model->module().To(DType::kFloat32, low.model->device()),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is sharded in")));
    return absl::OkStatus();
  }));
}

// From float32, rounded, with the optimizer's state, and back, exactly.
TEST_P(ModelDTypeTest, StatesLoadIntoModelsOfOtherDTypes) {
  const DType dtype = GetParam();
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(trained.Train(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict wide, trained.AllState());
    FSDP_ASSIGN_OR_RETURN(TestModel low, MakeTestModel(group, BlockOptions(), dtype));
    FSDP_RETURN_IF_ERROR(low.model->LoadStateDict(wide));
    FSDP_RETURN_IF_ERROR(low.model->LoadOptimStateDict(wide, *low.optimizer));
    FSDP_ASSIGN_OR_RETURN(const StateDict rounded, low.AllState());
    FSDP_RETURN_IF_ERROR(trained.model->LoadStateDict(rounded));
    FSDP_RETURN_IF_ERROR(trained.model->LoadOptimStateDict(rounded, *trained.optimizer));
    FSDP_ASSIGN_OR_RETURN(const StateDict back, trained.AllState());
    for (const auto& [key, value] : wide.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      const std::vector<float> expected = FloatsOf(tensor->shards.at(0).data);
      const Tensor &in_low = rounded.FindTensor(key)->shards.at(0).data,
                   &again = back.FindTensor(key)->shards.at(0).data;
      EXPECT_EQ(in_low.dtype(), key.state == "step" ? DType::kFloat32 : dtype) << key.ToString();
      EXPECT_EQ(again.dtype(), DType::kFloat32) << key.ToString();
      EXPECT_EQ(FloatsOf(in_low), FloatsOf(again)) << key.ToString();
      std::vector<std::byte> bits(in_low.nbytes());
      FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, expected.data(), in_low.dtype(), bits.data(), in_low.numel()));
      EXPECT_EQ(std::memcmp(bits.data(), in_low.data(), bits.size()), 0) << key.ToString();
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(DTypes, ModelDTypeTest, testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

}  // namespace
}  // namespace fsdp
