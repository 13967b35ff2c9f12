// SPDX-License-Identifier: Apache-2.0
//
// The parameters of an optimizer's ids, in the cases that the golden files do not have.
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/parameter_ids.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

StateDict Model(const std::vector<std::pair<std::string, Shape>>& tensors, DType dtype = DType::kFloat32) {
  StateDict model;
  for (const auto& [name, shape] : tensors) model.Set(StateKey::Model(name), ShardedTensor{dtype, shape, {}, 0});
  return model;
}

// The names by id, for a state with these shapes.
absl::StatusOr<std::map<std::string, std::string>> NamesOf(const std::string& groups,
                                                           const std::map<std::string, Shape>& shapes,
                                                           const StateDict& model) {
  std::vector<TorchLeafType> types;
  const TorchLeafTypes all(types);
  for (const auto& [key, shape] : shapes) types.push_back({DType::kFloat32, shape});
  KeyShapes by_key(all);
  int tensor = 0;
  for (const auto& [key, shape] : shapes) by_key.Add(key, tensor++);
  by_key.Finish();
  PythonJson json = PythonJson::parse(groups);
  FSDP_ASSIGN_OR_RETURN(const ParameterNames names, NamesOfParameterIds(json, by_key, model));
  std::map<std::string, std::string> by_id;
  for (const int64_t id : names.ids()) by_id[std::to_string(id)] = *names.Find(std::to_string(id));
  return by_id;
}

TEST(ParameterIdsTest, OneGroupIsTheModelsOrderWithoutItsBuffers) {
  StateDict model = Model({{"a", {2, 3}}, {"bn.running_mean", {3}}, {"b", {3}}});
  model.Set(StateKey::Model("bn.num_batches_tracked"), ShardedTensor{DType::kInt64, {}, {}, 0});
  EXPECT_THAT(NamesOf((R"([{"params":[0,1]}])"), {{"0", {2, 3}}, {"1", {3}}}, model),
              IsOkAndHolds(ElementsAre(Pair("0", "a"), Pair("1", "b"))));
}

TEST(ParameterIdsTest, GroupsAreMergedWhereSizesLeaveOneWay) {
  const StateDict model = Model({{"a", {2, 3}}, {"b", {3}}, {"c", {3, 2}}});
  EXPECT_THAT(NamesOf((R"([{"params":[0,1]},{"params":[2]}])"), {{"0", {2, 3}}, {"1", {3, 2}}, {"2", {3}}}, model),
              IsOkAndHolds(ElementsAre(Pair("0", "a"), Pair("1", "c"), Pair("2", "b"))));
}

TEST(ParameterIdsTest, BuffersAndFrozenParametersArePassedOverWhereShapesTell) {
  // "scale" is a buffer that is in no list, and "c" was frozen.
  const StateDict model = Model({{"a", {2, 3}}, {"scale", {}}, {"b", {4}}, {"c", {5}}});
  EXPECT_THAT(NamesOf((R"([{"params":[0,1]}])"), {{"0", {2, 3}}, {"1", {4}}}, model),
              IsOkAndHolds(ElementsAre(Pair("0", "a"), Pair("1", "b"))));
  EXPECT_THAT(NamesOf((R"([{"params":[0]},{"params":[1]}])"), {{"0", {4}}, {"1", {2, 3}}}, model),
              IsOkAndHolds(ElementsAre(Pair("0", "b"), Pair("1", "a"))));
  // Two candidates with one shape.
  EXPECT_THAT(
      NamesOf((R"([{"params":[0,1]}])"), {{"0", {2, 3}}, {"1", {4}}}, Model({{"a", {2, 3}}, {"b", {4}}, {"c", {4}}})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than one way")));
  // State without a second dimension may be a flat parameter that happens to be as long as "b".
  EXPECT_THAT(NamesOf((R"([{"params":[0]}])"), {{"0", {4}}}, model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("there are 1 of them, but 4 parameters")));
}

TEST(ParameterIdsTest, TwoWaysToMergeAreAnErrorAndNoGuess) {
  const StateDict model = Model({{"a", {3}}, {"b", {3}}});
  EXPECT_THAT(NamesOf((R"([{"params":[0]},{"params":[1]}])"), {{"0", {3}}, {"1", {3}}}, model),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("merged in more than one way at \"b\""), HasSubstr("save it by name"))));
}

TEST(ParameterIdsTest, NamesThatTorchSavedDecide) {
  EXPECT_THAT(NamesOf((R"([{"params":[0,1],"param_names":["b","a"]}])"), {}, StateDict()),
              IsOkAndHolds(ElementsAre(Pair("0", "b"), Pair("1", "a"))));
}

TEST(ParameterIdsTest, NamesNeedNoMap) {
  EXPECT_THAT(NamesOf((R"([{"params":["a"]}])"), {}, StateDict()), IsOkAndHolds(IsEmpty()));
}

TEST(ParameterIdsTest, FlatStateOfFsdpIsRefusedWithTheReason) {
  const StateDict model = Model({{"a", {2, 3}}});
  EXPECT_THAT(NamesOf((R"([{"params":[0]}])"), {{"0", {6}}}, model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FSDP1's flat form")));
  EXPECT_THAT(
      NamesOf((R"([{"params":[0,1]}])"), {}, model),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("there are 2 of them, but 1 parameters in the model")));
  EXPECT_THAT(NamesOf((R"([{"params":[0]}])"), {}, StateDict()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the model that gives ids their order is not in the same file")));
}

// A flattened optimizer, as in the output of DCP's flatten_optimizer_state_dict.
TEST(TorchOptimizerTest, FlattenedNamesAreTakenApart) {
  TorchNode flat;
  flat.Add("state.a.weight.exp_avg", TorchNode::Tensor(0));
  flat.Add("state.a.weight.step", TorchNode::Value(3));
  flat.Add("param_groups.a.weight.lr", TorchNode::Value(0.5));
  flat.Add("param_groups.b.lr", TorchNode::Value(0.5));
  flat.Add("param_groups.c.lr", TorchNode::Value(0.25));
  ASSERT_TRUE(IsTorchOptimizer(flat));
  const std::vector<TorchLeafType> types = {{DType::kFloat32, {2}}};
  std::vector<std::pair<StateKey, TorchOptimizerState>> state;
  const auto sink = [&](StateKey key, TorchOptimizerState value) {
    state.emplace_back(std::move(key), std::move(value));
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(TorchNode node, NestedOptimizer(flat, types, nullptr));
  ASSERT_OK_AND_ASSIGN(const std::string groups, ReadTorchOptimizer(node, types, StateDict(), {}, {}, sink));
  ASSERT_EQ(state.size(), 2);
  EXPECT_EQ(state[0].first, StateKey::OptimState("a.weight", "exp_avg"));
  EXPECT_EQ(state[1].first, StateKey::OptimState("a.weight", "step"));
  EXPECT_EQ(state[1].second.value, PythonJson(3));  // a number stays one
  EXPECT_EQ(groups, R"([{"lr":0.5,"params":["a.weight","b"]},{"lr":0.25,"params":["c"]}])");
}

// A dict without a tensor is one value: SGD's, without momentum.
TEST(TorchOptimizerTest, FlattenedOptionsWithoutStateAreAnOptimizer) {
  const TorchNode flat = TorchNode::Value(PythonJson::parse(R"({"param_groups.a.weight.lr":0.5})"));
  ASSERT_TRUE(IsTorchOptimizer(flat));
  EXPECT_FALSE(IsTorchOptimizer(TorchNode::Value(PythonJson::parse(R"({"param_groups":0.5,"state.a.lr":1})"))));
  const auto sink = [](const StateKey&, const TorchOptimizerState&) { return absl::OkStatus(); };
  ASSERT_OK_AND_ASSIGN(TorchNode node, NestedOptimizer(flat, std::vector<TorchLeafType>(), nullptr));
  ASSERT_OK_AND_ASSIGN(const std::string groups,
                       ReadTorchOptimizer(node, std::vector<TorchLeafType>(), StateDict(), {}, {}, sink));
  EXPECT_EQ(groups, R"([{"lr":0.5,"params":["a.weight"]}])");
}

// The state of "0" has no dimensions, unlike the state of "1", so it is "scale" and not the frozen "c". "eta" is a
// number for both.
TEST(TorchOptimizerTest, AParameterWithoutDimensionsIsRecognisedByItsState) {
  TorchNode optimizer;
  TorchNode* state = optimizer.Add("state", TorchNode());
  for (int id = 0; id < 2; ++id) {
    TorchNode* of_id = state->Add(std::to_string(id), TorchNode());
    of_id->Add("eta", TorchNode::Tensor(0));
    of_id->Add("exp_avg", TorchNode::Tensor(id));
  }
  TorchNode* groups = optimizer.Add("param_groups", TorchNode());
  groups->is_list = true;
  groups->Add("0", TorchNode::Value(PythonJson::parse(R"({"params":[0,1]})")));
  const StateDict model = Model({{"c", {5}}, {"scale", {}}, {"a", {2, 3}}});
  const std::vector<TorchLeafType> types = {{DType::kFloat32, {}}, {DType::kFloat32, {2, 3}}};
  const auto sink = [](const StateKey&, const TorchOptimizerState&) { return absl::OkStatus(); };
  ASSERT_OK_AND_ASSIGN(const std::string param_groups, ReadTorchOptimizer(optimizer, types, model, {}, {}, sink));
  EXPECT_EQ(param_groups, R"([{"params":["scale","a"]}])");
}

TEST(TorchStateTest, FlatParametersAreRefusedByName) {
  TorchNode root;
  root.Add("_fsdp_wrapped_module._flat_param", TorchNode::Tensor(0));
  const std::vector<TorchLeafType> types = {{DType::kFloat32, {2}}};
  EXPECT_THAT(StateOfTree(root, types),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"_fsdp_wrapped_module._flat_param\" is a flat parameter of FSDP1"),
                             HasSubstr("TensorSourceOptions::flat_layout provides it"))));
}

// The flat parameter of 2 ranks, 4 elements each, and slices of use_orig_params: "tied" is the second rank's slice of
// "b" under another name, "mean" is a buffer, and "lost" has no element that could identify its parameter.
TEST(TorchStateTest, SlicesGiveWayToTheirParametersUnderEachName) {
  const std::vector<std::pair<std::string, std::string>> elements = {
      {"_flat_param", "abcdefgh"}, {"a", "abc"}, {"b", ""}, {"tied", "efgh"}, {"mean", "efgg"}, {"lost", ""}};
  TorchNode root;
  std::vector<TorchLeafType> types;
  for (const auto& [name, bytes] : elements) {
    root.Add(name, TorchNode::Tensor(static_cast<int>(types.size())));
    types.push_back({DType::kInt8, {static_cast<int64_t>(bytes.size())}});
  }
  const TorchTensorReader read = [&](int tensor, const Interval& part, std::byte* out) {
    std::memcpy(out, elements[tensor].second.data() + part.begin, part.size());
    return absl::OkStatus();
  };
  const FlatLayout layout = {{{"a", {3}}, {"b", {5, 1}}}, {}};
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       StateOfTree(root, types, {.read = read, .flat = {.layout = &layout, .world_size = 2}}));
  EXPECT_EQ(state.contents.entries().size(), 3);
  EXPECT_EQ(state.contents.FindTensor(StateKey::Model("a"))->shape, Shape({3}));
  EXPECT_EQ(state.contents.FindTensor(StateKey::Model("b"))->shape, Shape({5, 1}));
  EXPECT_EQ(state.contents.FindTensor(StateKey::Model("mean"))->shape, Shape({4}));
  EXPECT_THAT(state.contents.aliases, ElementsAre(Pair("tied", "b")));
  EXPECT_EQ(state.leaves.size(), 3);
}

}  // namespace
}  // namespace fsdp
