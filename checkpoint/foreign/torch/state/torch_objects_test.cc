// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kNamespace = "cargparse\nNamespace\n)\x81}X\2\0\0\0lrK\1sb"s;

// {"x": the value that `value` pushes, "y": 1}.
std::string Dict(const std::string& value) { return "\x80\x02}(X\1\0\0\0x"s + value + "X\1\0\0\0yK\1u."s; }

struct Case {
  const char* python;
  std::string value;
  const char* path;
  const char* global;
  const char* left;  // of the dict
};

TEST(TorchObjectsTest, OnlyTheObjectItselfIsTakenOutOfItsContainer) {
  const std::vector<Case> cases = {
      {"Namespace(lr=1)", kNamespace, "x", "argparse.Namespace", R"({"y":1})"},
      {"Namespace", "cargparse\nNamespace\n", "x", "argparse.Namespace", R"({"y":1})"},
      {"[Namespace(lr=1), 7]", "](" + kNamespace + "K\7e", "x.0", "argparse.Namespace", R"({"x":[null,7],"y":1})"},
      {"(7, Namespace(lr=1))", "K\7" + kNamespace + "\x86", "x.1", "argparse.Namespace",
       R"({"x":{"__python__":"tuple","items":[7,null]},"y":1})"},
      {"{Color(1), 7}", "c__builtin__\nset\n](c__main__\nColor\nK\1\x85RK\7e\x85R", "x.0", "__main__.Color",
       R"({"x":{"__python__":"set","items":[7]},"y":1})"},
      {"{'a': Namespace(lr=1), 'b': 2}", "}(X\1\0\0\0a"s + kNamespace + "X\1\0\0\0bK\2u"s, "x.a", "argparse.Namespace",
       R"({"x":{"b":2},"y":1})"},
      {"{7: Namespace(lr=1), 8: 2}", "}(K\7" + kNamespace + "K\x08K\2u", "x.7", "argparse.Namespace",
       R"({"x":{"__python__":"dict","items":[[8,2]]},"y":1})"},
      {"torch.device(Color(1))", "ctorch\ndevice\nc__main__\nColor\nK\1\x85R\x85R", "x", "__main__.Color",
       R"({"y":1})"},
      {"History([1, 2])", "c__main__\nHistory\n)\x81(K\1K\2e", "x", "__main__.History", R"({"y":1})"},
      {"defaultdict(list, {1: 2})", "ccollections\ndefaultdict\nc__builtin__\nlist\n\x85RK\1K\2s", "x",
       "collections.defaultdict", R"({"y":1})"},
      {"Point() in protocol 0", "ccopyreg\n_reconstructor\n(c__main__\nPoint\nc__builtin__\nobject\nNtR", "x",
       "__main__.Point", R"({"y":1})"},
  };
  for (const Case& test : cases) {
    absl::StatusOr<TorchTree> tree = ParseTorchTree(Dict(test.value));
    ASSERT_OK(tree) << test.python;
    const std::vector<TorchObject> objects = TakeObjects(tree->root);
    ASSERT_EQ(objects.size(), 1) << test.python;
    EXPECT_EQ(objects[0].path, test.path) << test.python;
    EXPECT_EQ(objects[0].global, test.global) << test.python;
    ASSERT_OK_AND_ASSIGN(const PythonJson left, tree->root.ToJson());
    EXPECT_EQ(left.dump(), test.left) << test.python;
  }
}

TEST(TorchObjectsTest, AStateDictWithAnObjectIsRefusedByItsNamePlaceAndHowToSaveIt) {
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, ParseTorchTree(Dict("](" + kNamespace + "c__main__\nNet\n)\x81" + "e")));
  const std::vector<TorchLeafType> none;
  EXPECT_THAT(
      StateOfTree(tree.root, none),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(HasSubstr("nothing was executed: \"x.0\" (an object of \"argparse.Namespace\", byte "),
                HasSubstr("the arguments of a command line: save vars(args)), \"x.1\" (an object of \"__main__.Net"),
                HasSubstr("TensorSourceOptions::skip_links"), HasSubstr("TensorSourceOptions::model_only"))));
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOfTree(tree.root, none, {.skip_objects = true}));
  EXPECT_THAT(state.left_out, ElementsAre(HasSubstr("\"x.0\""), HasSubstr("\"x.1\"")));
  EXPECT_EQ(*state.contents.FindText(StateKey::Extra("x")), "[null,null]");
  EXPECT_EQ(*state.contents.FindText(StateKey::Extra("y")), "1");
}

TEST(TorchObjectsTest, AFileThatIsOneObjectIsRefusedInEveryWayOfReading) {
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, ParseTorchTree("\x80\x02"
                                                            "c__main__\nNet\n)\x81}b."));
  const std::vector<TorchLeafType> none;
  EXPECT_THAT(
      StateOfTree(tree.root, none, {.skip_objects = true}),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("the whole file (an object of \"__main__.Net\""),
                                                         HasSubstr("state_dict()"), Not(HasSubstr("skip_links")))));
}

std::string Text(const std::string& text) { return "X"s + static_cast<char>(text.size()) + "\0\0\0"s + text; }

// A float32 [2] in storage `key`; `more` is another argument.
std::string Tensor(const std::string& key, const std::string& more = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + "ctorch\nFloatStorage\n" + Text(key) +
         Text("cpu") + "K\2tQK\0K\2\x85K\1\x85\x89"s + "ccollections\nOrderedDict\n)R" + more + "tR";
}

// Tensors in forms that are not read, in short: only the function and its class count.
std::vector<std::string> OtherForms() {
  return {
      "ctorch._utils\n_rebuild_sparse_tensor\n)R",           // torch.eye(2).to_sparse()
      "ctorch._utils\n_rebuild_qtensor\n)R",                 // torch.quantize_per_tensor
      "ctorch._utils\n_rebuild_meta_tensor_no_storage\n)R",  // device="meta"
      "ctorch._utils\n_rebuild_nested_tensor\n)R",
      "cmylib\nFloat8Tensor\n)R",
      // A subclass, and conj().
      "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmylib\nMask\n)}tR",
      Tensor("1", "}" + Text("conj") + "\x88s"),
  };
}

// {`key`: {"w.weight": tensor}, `other`: {"x": the value that `value` pushes}}; one dict if the keys are equal.
std::string Model(const std::string& key, const std::string& other, const std::string& value) {
  const std::string model = "\x80\x02}(" + Text(key) + "}(" + Text("w.weight") + Tensor("0");
  return model + (key == other ? "" : "u" + Text(other) + "}(") + Text("x") + value + "uu.";
}

absl::StatusOr<TorchState> StateOf(const std::string& pickle, const TorchStateOptions& options) {
  absl::StatusOr<TorchTree> tree = ParseTorchTree(pickle);
  if (!tree.ok()) return tree.status();
  const TorchTensors& tensors = tree->tensors;
  const TorchLeafTypes types(static_cast<int64_t>(tensors.size()), [&tensors](int i) {
    return TorchLeafType{tensors.dtype(i), tensors.shape(i)};
  });
  return StateOfTree(std::move(tree->root), types, options);
}

TEST(TorchObjectsTest, ATensorInAnotherFormDoesNotLockTheModelNextToIt) {
  for (const std::string& form : OtherForms()) {
    const std::string pickle = Model("model", "cache", form);
    EXPECT_THAT(StateOf(pickle, {}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("tensors in other forms are not read"), HasSubstr("\"cache.x\" ("),
                               HasSubstr("TensorSourceOptions::model_only"))))
        << form;
    const absl::StatusOr<TorchState> state = StateOf(pickle, {.model_only = true, .skip_objects = true});
    ASSERT_OK(state) << form;
    EXPECT_NE(state->contents.FindTensor(StateKey::Model("w.weight")), nullptr) << form;
    EXPECT_THAT(state->left_out, ElementsAre(HasSubstr("\"cache.x\""))) << form;
  }
}

// A part of a model must not pass for the whole.
TEST(TorchObjectsTest, ATensorOfTheModelInAnotherFormIsLeftOutOnlyWhenAskedFor) {
  const TorchStateOptions only_model = {.model_only = true, .skip_objects = true};
  for (const std::string& form : OtherForms()) {
    for (const std::string& pickle : {Model("model", "model", form), Model("net", "net", form)}) {
      EXPECT_THAT(StateOf(pickle, only_model),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("tensors of the model in other forms are not read"), HasSubstr(".x\" ("),
                                 HasSubstr("TensorSourceOptions::skip_links"), Not(HasSubstr("model_only")))))
          << form;
      const absl::StatusOr<TorchState> state = StateOf(pickle, {.skip_objects = true, .skip_weights = true});
      ASSERT_OK(state) << form;
      EXPECT_THAT(state->left_out, ElementsAre(HasSubstr(".x\""))) << form;
    }
  }
  // What is left is no model, or another one.
  EXPECT_THAT(StateOf(Model("ema", "model", OtherForms()[0]), only_model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"model.x\"")));
  EXPECT_THAT(StateOf(Dict(OtherForms()[0]), only_model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
}

TEST(TorchObjectsTest, ATensorInAPlaceForNoTensorIsNamed) {
  const std::string storage = "(" + Text("storage") + "ctorch\nFloatStorage\n" + Text("1") + Text("cpu") + "K\2tQ";
  const struct {
    const char* python;
    std::string value;
    const char* path;
  } cases[] = {{"{tensor, 7}", "c__builtin__\nset\n](" + Tensor("1") + "K\7e\x85R", "\"cache.x.0\""},
               {"{tensor: 1}", "}" + Tensor("1") + "K\1s", "\"cache.x.a key\""},
               {"{Color(1): tensor}", "}c__main__\nColor\nK\1\x85R" + Tensor("1") + "s", "\"cache.x.a key at byte "},
               {"storage", storage, "\"cache.x\""}};
  for (const auto& test : cases) {
    const absl::StatusOr<TorchState> state =
        StateOf(Model("model", "cache", test.value), {.model_only = true, .skip_objects = true});
    ASSERT_OK(state) << test.python;
    EXPECT_NE(state->contents.FindTensor(StateKey::Model("w.weight")), nullptr) << test.python;
    EXPECT_THAT(state->left_out, ElementsAre(HasSubstr(test.path))) << test.python;
  }
}

// The order of the samples of ImageNet, which a sampler keeps.
TEST(TorchObjectsTest, AValueThatIsTooLargeDoesNotLockTheModelNextToIt) {
  std::string order = "](";
  for (int i = 0; i < 1'000'001; ++i) order += "K\7";
  order += "e";
  const std::string pickle =
      Model("model", "loader", "}(" + Text("order") + order + Text("again") + order + "uX\1\0\0\0yK\1"s);
  EXPECT_THAT(StateOf(pickle, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("values are not read"), HasSubstr("\"loader.x.order\" (byte "),
                             HasSubstr("too large or too deep to be kept"), HasSubstr("model_only"))));
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(pickle, {.model_only = true, .skip_objects = true}));
  EXPECT_NE(state.contents.FindTensor(StateKey::Model("w.weight")), nullptr);
  EXPECT_THAT(state.left_out, ElementsAre(HasSubstr("\"loader.x.order\""), HasSubstr("\"loader.x.again\"")));
  EXPECT_EQ(*state.contents.FindText(StateKey::Extra("loader")), R"({"x":{},"y":1})");
}

// A string of Python 2.
TEST(TorchObjectsTest, AValueThatHasNoFormIsInvalidAndNotTooLarge) {
  EXPECT_THAT(StateOf(Model("model", "cache", "U\1\xff"), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("values are not read"), HasSubstr("\"cache.x\" (byte "),
                             HasSubstr("a string that is not UTF-8"))));
}

// Regression: the key 7 of what was around an object became "7".
TEST(TorchObjectsTest, AKeyStaysWhatItIsWhereItsValueHadAnObject) {
  const std::string value = "}(K\7](" + kNamespace + "K\1eK\x08" + Tensor("1") + "u";
  ASSERT_OK_AND_ASSIGN(TorchTree tree, ParseTorchTree(Model("model", "cache", value)));
  ASSERT_EQ(TakeObjects(tree.root).size(), 1);
  const TorchNode* const x = tree.root.Find("cache")->Find("x");
  EXPECT_TRUE(x->Find("7")->has_json_name);
  EXPECT_EQ(x->Find("7")->value().dump(), "[null,1]");
}

TEST(TorchObjectsTest, AHundredOfManyObjectsAreNamed) {
  std::string objects = "](";
  for (int i = 0; i < 103; ++i) objects += kNamespace;
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, ParseTorchTree(Dict(objects + "e")));
  const std::vector<TorchLeafType> none;
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOfTree(tree.root, none, {.skip_objects = true}));
  ASSERT_EQ(state.left_out.size(), 101);
  EXPECT_EQ(state.left_out.back(), "and 3 more");
}

}  // namespace
}  // namespace fsdp
