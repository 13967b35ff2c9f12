// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module_state_dict.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/sequential.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class ModuleStateTest : public testing::Test {
 protected:
  // A layer, and another one tied to its weight.
  static std::unique_ptr<Sequential> Tied() {
    auto first = std::make_unique<Conv1D>(2, 2, Initializer::Normal(0, 1));
    auto second = std::make_unique<Linear>(first->own_parameters()[0].second);
    return std::make_unique<Sequential>(std::move(first), std::move(second));
  }

  std::unique_ptr<Sequential> Materialized(uint64_t seed) {
    std::unique_ptr<Sequential> model = Tied();
    model->AssignNames();
    EXPECT_OK(model->Materialize(*device_, seed));
    return model;
  }

  static std::vector<float> Weight(const Module& model) {
    const Tensor& data = model.children()[0].second->own_parameters()[0].second->data;
    return std::vector<float>(data.data_as<float>(), data.data_as<float>() + data.numel());
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(ModuleStateTest, HasEachTensorOnceUnderItsFirstNameAndAliases) {
  const std::unique_ptr<Sequential> model = Materialized(1);
  const absl::StatusOr<StateDict> state = GetModuleStateDict(*model);
  ASSERT_OK(state);
  std::vector<std::string> keys;
  for (const auto& [key, value] : state->entries()) keys.push_back(key.ToString());
  EXPECT_THAT(keys, ElementsAre("model/0.weight", "model/0.bias"));
  EXPECT_THAT(state->aliases, ElementsAre(Pair("1.weight", "0.weight")));
}

TEST_F(ModuleStateTest, ItsTensorsAreTheModulesMemory) {
  const std::unique_ptr<Sequential> model = Materialized(1);
  const absl::StatusOr<StateDict> state = GetModuleStateDict(*model);
  ASSERT_OK(state);
  state->FindTensor(StateKey::Model("0.weight"))->shards[0].data.data_as<float>()[2] = 42;
  EXPECT_EQ(Weight(*model)[2], 42);
}

TEST_F(ModuleStateTest, ALoadGivesTheValuesOfAnotherModule) {
  const std::unique_ptr<Sequential> from = Materialized(1), to = Materialized(2);
  ASSERT_NE(Weight(*from), Weight(*to));
  ASSERT_OK(LoadModuleStateDict(*GetModuleStateDict(*from), *to, *stream_));
  EXPECT_EQ(Weight(*from), Weight(*to));
}

TEST_F(ModuleStateTest, ASharedTensorIsFoundUnderAnyOfItsNames) {
  const std::unique_ptr<Sequential> from = Materialized(1), to = Materialized(2);
  const absl::StatusOr<StateDict> state = GetModuleStateDict(*from);
  ASSERT_OK(state);
  StateDict renamed;
  renamed.Set(StateKey::Model("1.weight"), *state->FindTensor(StateKey::Model("0.weight")));
  renamed.Set(StateKey::Model("0.bias"), *state->FindTensor(StateKey::Model("0.bias")));
  ASSERT_OK(LoadModuleStateDict(renamed, *to, *stream_));
  EXPECT_EQ(Weight(*from), Weight(*to));
}

TEST_F(ModuleStateTest, AnotherModulesStateIsRefusedAndChangesNothing) {
  const std::unique_ptr<Sequential> to = Materialized(2);
  const std::vector<float> before = Weight(*to);
  const absl::StatusOr<StateDict> state = GetModuleStateDict(*Materialized(1));
  ASSERT_OK(state);
  const ShardedTensor weight = *state->FindTensor(StateKey::Model("0.weight"));

  StateDict names;
  names.Set(StateKey::Model("0.weight"), weight);
  names.Set(StateKey::Model("2.weight"), weight);
  EXPECT_THAT(LoadModuleStateDict(names, *to, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("missing names: [0.bias]"), HasSubstr("unexpected names: [2.weight]"))));

  StateDict shapes = *state;
  ShardedTensor flat = weight;
  flat.shape = {4};
  shapes.Set(StateKey::Model("0.weight"), flat);
  EXPECT_THAT(LoadModuleStateDict(shapes, *to, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"0.weight\": float32 [4] in the state dict != wanted float32 [2, 2]")));

  StateDict part = *state;
  ShardedTensor half = weight;
  half.shards[0] = {{0, 2}, weight.shards[0].data.Slice({0, 2})};
  part.Set(StateKey::Model("0.weight"), half);
  EXPECT_THAT(LoadModuleStateDict(part, *to, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor \"0.weight\" [2, 2] is not whole here")));
  EXPECT_EQ(Weight(*to), before);
}

TEST_F(ModuleStateTest, AModuleWithoutMemoryIsRefusedByName) {
  const std::unique_ptr<Sequential> model = Tied();
  EXPECT_THAT(GetModuleStateDict(*model), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                   HasSubstr("parameter \"0.weight\" [2, 2]: data is not bound")));
}

}  // namespace
}  // namespace fsdp
