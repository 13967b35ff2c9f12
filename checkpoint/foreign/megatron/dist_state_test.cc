// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/dist_state.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DistStateTest : public testing::Test {
 protected:
  void Tensor(const std::string& key, std::vector<int64_t> shape, DType dtype = DType::kFloat32) {
    input_.entries.push_back(DcpEntry::OfTensor(key, {{key, false}}, static_cast<uint32_t>(tensors_.size())));
    tensors_.push_back({dtype, *Shape::Create(shape)});
  }
  void Value(const std::string& key) { input_.entries.push_back(DcpEntry::OfValue(key, {{key, false}}, 0)); }

  absl::StatusOr<TorchState> Make() {
    input_.tensor = [this](int i) -> const DcpTensor& { return tensors_[i]; };
    return MakeDistState(std::move(input_));
  }
  std::string Error() { return std::string(Make().status().message()); }

  static std::vector<std::string> NamesOf(const TorchState& state) {
    std::vector<std::string> names;
    for (const auto& [key, value] : state.contents.entries()) names.push_back(key.ToString());
    return names;
  }

  DistStateInput input_;
  std::vector<DcpTensor> tensors_;
};

TEST_F(DistStateTest, StacksAreDividedByNumber) {
  Tensor("decoder.layers.mlp.experts.experts.linear_fc2.weight", {2, 3, 4, 5});
  ASSERT_OK_AND_ASSIGN(const TorchState state, Make());
  ASSERT_EQ(state.contents.entries().size(), 6u);
  const StateKey key = StateKey::Model("decoder.layers.1.mlp.experts.experts.2.linear_fc2.weight");
  EXPECT_EQ(state.contents.FindTensor(key)->shape, *Shape::Create({4, 5}));
  ASSERT_OK_AND_ASSIGN(const TorchLeaf* leaf, state.FindLeaf(key));
  EXPECT_EQ(leaf->tensor_part()->offset, (1 * 3 + 2) * 4 * 5);
}

TEST_F(DistStateTest, OptimizerStateHasTheNamesOfItsParameters) {
  Tensor("decoder.layers.mlp.linear_fc2.bias", {2, 4}, DType::kBFloat16);
  Tensor("optimizer.state.param.decoder.layers.mlp.linear_fc2.bias", {2, 4});
  Tensor("chained_1.optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.bias", {2, 4});
  input_.common.param_groups = PythonJson::parse(R"([{"lr": 0.5, "step": 3}])");
  input_.common.optimizer_step = 3;
  ASSERT_OK_AND_ASSIGN(const TorchState state, Make());
  EXPECT_THAT(NamesOf(state),
              ElementsAre("model/decoder.layers.0.mlp.linear_fc2.bias", "model/decoder.layers.1.mlp.linear_fc2.bias",
                          "optim/state/decoder.layers.0.mlp.linear_fc2.bias/param",
                          "optim/state/decoder.layers.1.mlp.linear_fc2.bias/param",
                          "optim/state/decoder.layers.0.mlp.linear_fc2.bias/exp_avg",
                          "optim/state/decoder.layers.1.mlp.linear_fc2.bias/exp_avg",
                          "optim/state/decoder.layers.0.mlp.linear_fc2.bias/step",
                          "optim/state/decoder.layers.1.mlp.linear_fc2.bias/step", "optim/param_groups"));
  EXPECT_EQ(*state.contents.FindText(StateKey::ParamGroups()),
            R"([{"lr":0.5,"params":["decoder.layers.0.mlp.linear_fc2.bias","decoder.layers.1.mlp.linear_fc2.bias"]}])");
  float step = 0;
  std::byte bytes[4];
  ASSERT_OK(state.Read(StateKey::OptimState("decoder.layers.1.mlp.linear_fc2.bias", "step"), {0, 1}, nullptr, bytes));
  std::memcpy(&step, bytes, 4);
  EXPECT_EQ(step, 3);
}

TEST_F(DistStateTest, SeveralGroupsAreNotGuessed) {
  Tensor("a.weight", {4});
  Tensor("optimizer.state.exp_avg.a.weight", {4});
  input_.common.param_groups = PythonJson::parse(R"([{"lr": 0.5}, {"lr": 0.1}])");
  ASSERT_OK_AND_ASSIGN(const TorchState state, Make());
  EXPECT_EQ(state.contents.FindText(StateKey::ParamGroups()), nullptr);
  EXPECT_THAT(state.layout.notes, ElementsAre(HasSubstr("the 2 param_groups are in the extra value")));
}

TEST_F(DistStateTest, WithModelOnlyThereIsNoOptimizer) {
  Tensor("a.weight", {4});
  Tensor("optimizer.state.exp_avg.a.weight", {3});  // would be an error
  input_.model_only = true;
  ASSERT_OK_AND_ASSIGN(const TorchState state, Make());
  EXPECT_THAT(NamesOf(state), ElementsAre("model/a.weight"));
  EXPECT_THAT(state.left_out, ElementsAre());
}

TEST_F(DistStateTest, BucketsAndValuesOfRanksAreLeftOutByName) {
  Tensor("a.weight", {4});
  Tensor("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.exp_avg", {64});
  Tensor("a._extra_state", {4}, DType::kUInt8);
  Value("decoder.layers.mlp.linear_fc1._extra_state/shard_0_2");
  Value("rng_state/shard_0.0_1.2");
  Value("rng_state/shard_0.1_1.2");
  input_.common.sharding_type = "dp_reshardable";
  ASSERT_OK_AND_ASSIGN(const TorchState state, Make());
  EXPECT_THAT(NamesOf(state), ElementsAre("model/a.weight"));
  EXPECT_THAT(state.left_out,
              ElementsAre(HasSubstr("2 _extra_state of modules, such as \"a._extra_state\""),
                          AllOf(HasSubstr("the optimizer's state, 1 buckets"), HasSubstr("dp_reshardable")),
                          HasSubstr("\"rng_state\" (2 values of ranks)")));
}

TEST_F(DistStateTest, LayersOfOneBlockAreEquallyMany) {
  Tensor("decoder.layers.mlp.linear_fc1.bias", {3, 4});
  Tensor("decoder.layers.mlp.linear_fc2.bias", {2, 4});
  EXPECT_THAT(Error(),
              HasSubstr("\"decoder.layers.mlp.linear_fc2.bias\" has 2 along the axis of \"decoder.layers\", but "
                        "\"decoder.layers.mlp.linear_fc1.bias\" has 3"));
}

TEST_F(DistStateTest, ShapesAndNamesMustFit) {
  Tensor("decoder.layers.mlp.experts.experts.linear_fc1.bias", {3});
  EXPECT_THAT(Error(), HasSubstr("has no axis for layers and experts"));
}

TEST_F(DistStateTest, OptimizerStateMustFitItsParameter) {
  Tensor("a.weight", {4});
  Tensor("optimizer.state.exp_avg.a.weight", {5});
  EXPECT_THAT(Error(), HasSubstr("stored shape [5] != [4] of its parameter"));
}

TEST_F(DistStateTest, OptimizerStateMustHaveAParameter) {
  Tensor("optimizer.state.exp_avg.b.weight", {5});
  EXPECT_THAT(Error(), HasSubstr("there is no parameter \"b.weight\""));
}

TEST_F(DistStateTest, TwoNamesMustNotBecomeOne) {
  Tensor("decoder.layers.w", {2, 4});
  Tensor("decoder.layers.1.w", {4});
  EXPECT_THAT(Error(), HasSubstr("\"model/decoder.layers.1.w\" occurs twice"));
}

// A file of some hundred bytes must not claim a billion layers.
TEST_F(DistStateTest, AHugeStackIsRefused) {
  Tensor("decoder.layers.w", {int64_t{1} << 40, 1});
  EXPECT_THAT(Make(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more layers or experts than .metadata")));
  tensors_.clear();
  input_ = {};
  Tensor("v", {int64_t{1} << 57, 1});
  Tensor("w", {int64_t{1} << 58, 1});
  EXPECT_THAT(Make(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("more than 2^60 bytes")));
}

}  // namespace
}  // namespace fsdp
