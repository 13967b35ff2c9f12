// SPDX-License-Identifier: Apache-2.0
//
// Values of a model that are no tensors (model_value.h), from a saved dict and back.
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_testutil.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

// The tree of the file that `state` would be.
absl::StatusOr<TorchTree> Written(const StateDict& state) {
  FSDP_ASSIGN_OR_RETURN(const EncodedTorchState encoded, EncodeTorchState(state));
  return ParseTorchTree(encoded.pickle);
}

TEST(ModelValuesTest, AValueOfAModelKeepsItsPlaceInTheModel) {
  const struct {
    const char* tree;
    std::vector<std::string> listing;
  } kCases[] = {
      {R"({"model": {"fc.weight": "float32[2]", "fc._extra_state": {"scale": [1, 2]}, "flag": 7}, "epoch": 2})",
       {"model/fc.weight float32[2]", "extra/model/fc._extra_state = {\"scale\":[1,2]}", "extra/model/flag = 7",
        "extra/epoch = 2"}},
      {R"({"fc.weight": "float32[2]", "fc._extra_state": null, "epoch": 2})",
       {"model/fc.weight float32[2]", "extra/model/fc._extra_state = null", "extra/epoch = 2"}},
      {R"({"fc.weight": "float32[2]", "fc._extra_state": "a",
           "opt": {"state": {"fc.weight": {"exp_avg": "float32[2]"}}, "param_groups": [{"params": ["fc.weight"]}]}})",
       {"model/fc.weight float32[2]", "extra/model/fc._extra_state = a", "optim/state/fc.weight/exp_avg float32[2]",
        R"(optim/param_groups = [{"params":["fc.weight"]}])"}},
      {R"({"model": {"fc.weight": "float32[2]", "fc._extra_state": {"amax": "float32[3]", "scale": 2}}, "epoch": 2})",
       {"model/fc.weight float32[2]", "extra/model/fc._extra_state.amax float32[3]",
        "extra/model/fc._extra_state.scale = 2", "extra/epoch = 2"}},
      {R"({"state_dict": {"module.fc.weight": "float32[2]", "module.fc.step_size": 0.5}})",
       {"model/fc.weight float32[2]", "extra/model/fc.step_size = 0.5"}},
  };
  for (const auto& test : kCases) {
    ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(test.tree).State());
    EXPECT_THAT(Listing(state.contents), UnorderedElementsAreArray(test.listing)) << test.tree;
    ASSERT_OK_AND_ASSIGN(TorchTree tree, Written(state.contents));
    const TorchTensors& tensors = tree.tensors;
    const TorchLeafTypes types(static_cast<int64_t>(tensors.size()), [&tensors](int i) {
      return TorchLeafType{tensors.dtype(i), tensors.shape(i)};
    });
    const bool is_plain = tree.root.Find("model") == nullptr;
    EXPECT_EQ(is_plain, test.listing.size() == 2) << test.tree;
    ASSERT_OK_AND_ASSIGN(const TorchState again, StateOfTree(std::move(tree.root), types));
    EXPECT_THAT(Listing(again.contents), UnorderedElementsAreArray(test.listing)) << test.tree;
  }
}

TEST(ModelValuesTest, OfSeveralModelsEachKeepsItsOwn) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(R"({"gen": {"a.weight": "float32[2]", "a._extra_state": 1},
                                    "dis": {"a.weight": "float32[2]", "a._extra_state": 2},
                                    "opt_gen": {"state": {"a.weight": {"exp_avg": "float32[2]"}},
                                                "param_groups": [{"params": ["a.weight"]}]}})")
                                                   .State());
  EXPECT_EQ(*state.contents.FindText(ModelValue("gen.a._extra_state")), "1");
  EXPECT_EQ(*state.contents.FindText(ModelValue("dis.a._extra_state")), "2");
}

TEST(ModelValuesTest, TensorsInDictsAndListsOfAModelAreNamedByTheirPaths) {
  ASSERT_OK_AND_ASSIGN(
      const TorchState nested,
      TestTree(R"({"model": {"w": "float32[2]", "cache": {"k": "float32[3]"}, "scales": ["float32[]"]}})").State());
  EXPECT_THAT(Listing(nested.contents),
              ElementsAreArray({"model/w float32[2]", "model/cache.k float32[3]", "model/scales.0 float32[]"}));
  EXPECT_THAT(nested.layout.notes, ElementsAreArray({"2 tensors are in dicts or lists inside of a model, and named by "
                                                     "the path: \"model.cache.k\""}));
  ASSERT_OK_AND_ASSIGN(const TorchState two,
                       TestTree(R"({"params": {"w": "float32[2]"}, "params_ema": {"w": "float32[2]"}})").State());
  EXPECT_THAT(two.layout.notes, ElementsAreArray({"2 tensors are in dicts or lists inside of a model, and named by "
                                                  "the path: \"params.w\""}));
  ASSERT_OK_AND_ASSIGN(const TorchState flat, TestTree(R"({"model": {"cache.k": "float32[3]"}})").State());
  EXPECT_THAT(flat.layout.notes, IsEmpty());
}

TEST(ModelValuesTest, ATensorAndAValueOfOneNameAreRefused) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Model("a.b"), tensor);
  state.Set(ModelValue("a.b"), std::string("1"));
  EXPECT_THAT(Written(state), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are both named \"a.b\"")));
}

// A file of ours from elsewhere may have any text there.
TEST(ModelValuesTest, AReferenceInAValueOfAModelIsChecked) {
  StateDict state;
  state.Set(ModelValue("a.b"), std::string(R"({"__python__":"reference","name":"absent"})"));
  EXPECT_THAT(Written(state), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"extra/absent\", which is")));
}

}  // namespace
}  // namespace fsdp
