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
