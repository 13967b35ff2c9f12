// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/clone_state_dict.h"

#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class CloneStateDictTest : public testing::Test {
 protected:
  // Elements 1 and 2 of a tensor of 4, a text, an alias, a layout and an attribute.
  StateDict Some() {
    StateDict state;
    state.type = StateDictType::kSharded;
    ShardedTensor tensor;
    tensor.shape = {4};
    Tensor data = *Tensor::Empty(*device_, DType::kFloat32, {2});
    data.data_as<float>()[0] = 3;
    data.data_as<float>()[1] = 5;
    tensor.shards.push_back({{1, 3}, data});
    tensor.replica = 1;
    state.Set(StateKey::Model("w"), tensor);
    state.Set(StateKey::Extra("step"), "7");
    state.aliases["v"] = "w";
    state.units.emplace_back().name = "u";
    return state;
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(CloneStateDictTest, HasEverythingInMemoryOfItsOwn) {
  const StateDict state = Some();
  const absl::StatusOr<StateDict> clone = CloneStateDict(state, *stream_);
  ASSERT_OK(clone);
  const ShardedTensor& original = *state.FindTensor(StateKey::Model("w"));
  original.shards[0].data.data_as<float>()[0] = 100;

  const ShardedTensor* copy = clone->FindTensor(StateKey::Model("w"));
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->shape, Shape({4}));
  EXPECT_EQ(copy->replica, 1);
  ASSERT_EQ(copy->shards.size(), 1u);
  EXPECT_EQ(copy->shards[0].interval, Interval({1, 3}));
  EXPECT_EQ(copy->shards[0].data.data_as<float>()[0], 3);
  EXPECT_EQ(copy->shards[0].data.data_as<float>()[1], 5);
  EXPECT_EQ(*clone->FindText(StateKey::Extra("step")), "7");
  EXPECT_EQ(clone->type, StateDictType::kSharded);
  EXPECT_EQ(clone->aliases, state.aliases);
  EXPECT_EQ(clone->units.size(), 1u);
}

TEST_F(CloneStateDictTest, ItsCopiesAreCountedAndFreed) {
  const StateDict state = Some();
  const int64_t before = device_->allocated_bytes();
  {
    const absl::StatusOr<StateDict> clone = CloneStateDict(state, *stream_);
    ASSERT_OK(clone);
    EXPECT_EQ(device_->allocated_bytes() - before, 8);
  }
  EXPECT_EQ(device_->allocated_bytes(), before);
}

TEST_F(CloneStateDictTest, ATensorOfAnotherDeviceIsNamed) {
  StateDict state = Some();
  float memory[2] = {};
  ShardedTensor elsewhere = *state.FindTensor(StateKey::Model("w"));
  elsewhere.shards[0].data =
      Tensor(Buffer::Unowned(memory, sizeof(memory), {DeviceType::kCuda, 1}), DType::kFloat32, {2});
  state.Set(StateKey::Model("x"), elsewhere);
  EXPECT_THAT(CloneStateDict(state, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"model/x\" is on cuda:1, expected host memory or cpu")));
}

}  // namespace
}  // namespace fsdp
