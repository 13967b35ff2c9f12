// SPDX-License-Identifier: Apache-2.0
//
// Extra values with tensors inside: pickles as torch.save writes them, through a state dict and back.
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/torch/state/value_notes.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::AllOf;
using testing::HasSubstr;

std::string Text(const std::string& text) { return "X"s + static_cast<char>(text.size()) + "\0\0\0"s + text; }

// A tensor of shape [2] in storage `key`.
std::string Tensor(const std::string& key) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + "ctorch\nFloatStorage\n" + Text(key) +
         Text("cpu") + "K\2tQK\0K\2\x85K\1\x85\x89"s + "ccollections\nOrderedDict\n)RtR";
}

// {"model": {"w": tensor}, "x": what `value` pushes}.
std::string StateWith(const std::string& value) {
  return "\x80\x02}(" + Text("model") + "}" + Text("w") + Tensor("w") + "s" + Text("x") + value + "u.";
}

absl::StatusOr<TorchState> ReadState(const std::string& pickle) {
  FSDP_ASSIGN_OR_RETURN(TorchTree tree, ParseTorchTree(pickle));
  const TorchTensors& tensors = tree.tensors;
  const TorchLeafTypes types(static_cast<int64_t>(tensors.size()), [&tensors](int i) {
    return TorchLeafType{tensors.dtype(i), tensors.shape(i)};
  });
  return StateOfTree(std::move(tree.root), types);
}

struct Case {
  const char* python;
  std::string value;
  const char* text;  // of extra/x, with R("a") for a reference to x.a
};

std::string WithReferences(std::string text) {
  for (size_t at = text.find("R("); at != text.npos; at = text.find("R(", at)) {
    const size_t end = text.find(')', at);
    text.replace(at, end + 1 - at, ReferenceText("x." + text.substr(at + 2, end - at - 2)));
  }
  return text;
}

TEST(ExtraPartsTest, ANestedValueWithTensorsComesBackAsItWas) {
  const std::vector<Case> cases = {
      {"{'a': tensor, 'n': 3}", "}(" + Text("a") + Tensor("0") + Text("n") + "K\3u", R"({"a":R(a),"n":R(n)})"},
      {"[tensor, {'lr': 1}]", "](" + Tensor("0") + "}" + Text("lr") + "K\1se", "[R(0),R(1)]"},
      {"(tensor, None)", Tensor("0") + "N\x86", R"({"__python__":"tuple","items":[R(0),R(1)]})"},
      {"{0: tensor, 'b': tensor}", "}(K\0"s + Tensor("0") + Text("b") + Tensor("1") + "u",
       R"({"__python__":"dict","items":[[0,R(0)],["b",R(b)]]})"},
      {"{(0, None): tensor}", "}K\0N\x86"s + Tensor("0") + "s",
       R"({"__python__":"dict","items":[[{"__python__":"tuple","items":[0,null]},R({"__python__":"tuple","items":[0,null]})]]})"},
      {"{True: tensor, None: 3}", "}(\x88" + Tensor("0") + "NK\3u",
       R"({"__python__":"dict","items":[[true,R(true)],[null,R(null)]]})"},
      {"{1: tensor, '1': tensor}", "}(K\1" + Tensor("0") + Text("1") + Tensor("1") + "u",
       R"({"__python__":"dict","items":[[1,R(1)],["1",R("1")]]})"},
      {"{'1': tensor, 1: tensor}", "}(" + Text("1") + Tensor("0") + "K\1" + Tensor("1") + "u",
       R"({"__python__":"dict","items":[["1",R(1)],[1,R( 1)]]})"},
      {"{'a.b': tensor, 'a': {'b': tensor}}",
       "}(" + Text("a.b") + Tensor("0") + Text("a") + "}" + Text("b") + Tensor("1") + "su",
       R"({"a.b":R(a.b),"a":{"b":R(a.b~2)}})"},
      {"{'a\\0': tensor}", "}" + Text("a\0"s) + Tensor("0") + "s", R"({"a\u0000":R(a\0)})"},
      {"Counter(a=tensor)", "ccollections\nCounter\n}" + Text("a") + Tensor("0") + "s\x85R",
       R"({"__python__":"Counter","items":[["a",R(a)]]})"},
      {"OrderedDict(a=tensor)", "ccollections\nOrderedDict\n)R" + Text("a") + Tensor("0") + "s",
       R"({"__python__":"OrderedDict","items":[["a",R(a)]]})"},
      {"{'rng': {'cuda': [tensor, tensor], 'py': (3, None)}}",
       "}" + Text("rng") + "}(" + Text("cuda") + "](" + Tensor("0") + Tensor("1") + "e" + Text("py") + "K\3N\x86us",
       R"({"rng":{"cuda":[R(rng.cuda.0),R(rng.cuda.1)],"py":R(rng.py)}})"},
  };
  for (const Case& test : cases) {
    const absl::StatusOr<TorchState> state = ReadState(StateWith(test.value));
    ASSERT_OK(state) << test.python;
    const std::string* const text = state->contents.FindText(StateKey::Extra("x"));
    ASSERT_NE(text, nullptr) << test.python;
    EXPECT_EQ(*text, WithReferences(test.text)) << test.python;
    ASSERT_OK_AND_ASSIGN(const EncodedTorchState encoded, EncodeTorchState(state->contents));
    const absl::StatusOr<TorchState> back = ReadState(encoded.pickle);
    ASSERT_OK(back) << test.python;
    ASSERT_EQ(back->contents.entries().size(), state->contents.entries().size()) << test.python;
    for (const auto& [key, value] : state->contents.entries()) {
      ASSERT_TRUE(back->contents.contains(key)) << test.python << ": " << key.ToString();
      const std::string* const of_text = state->contents.FindText(key);
      if (of_text == nullptr) continue;
      EXPECT_EQ(*back->contents.FindText(key), *of_text) << test.python;
    }
  }
}

// "x.a" and the a of "x" have one name, in either order.
TEST(ExtraPartsTest, APartGivesWayToAnotherExtraValueOfItsName) {
  const std::string part = Text("x") + "}" + Text("a") + Tensor("0") + "s";
  const std::string whole = Text("x.a") + Tensor("1");
  for (const std::string& members : {part + whole, whole + part}) {
    const std::string pickle = "\x80\x02}(" + Text("model") + "}" + Text("w") + Tensor("w") + "s" + members + "u.";
    ASSERT_OK_AND_ASSIGN(const TorchState state, ReadState(pickle));
    EXPECT_EQ(*state.contents.FindText(StateKey::Extra("x")), WithReferences(R"({"a":R(a~2)})"));
    EXPECT_NE(state.contents.FindTensor(StateKey::Extra("x.a")), nullptr);
    EXPECT_NE(state.contents.FindTensor(StateKey::Extra("x.a~2")), nullptr);
  }
}

TEST(ExtraPartsTest, AReferenceToNothingOrToReferencesIsNamed) {
  StateDict state;
  state.Set(StateKey::Extra("x"), "[" + ReferenceText("y") + "]");
  EXPECT_THAT(EncodeTorchState(state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"extra/x\""), HasSubstr("\"extra/y\", which is missing"))));
  state.Set(StateKey::Extra("y"), "[" + ReferenceText("x") + "]");
  EXPECT_THAT(EncodeTorchState(state),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which has references itself")));
}

TEST(ExtraPartsTest, AGroupMayNotReferToAnExtraValue) {
  EXPECT_THAT(TorchParamGroups(R"([{"params":[],"lr":)" + ReferenceText("x") + "}]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("refers to an extra value")));
}

TEST(ExtraPartsTest, AValueThatPyTorchsFormatsChangeIsNamed) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Extra("ema.w"), tensor);
  state.Set(StateKey::Extra("plain"), absl::StrCat("{\"w\":", ReferenceText("ema.w"), "}"));
  state.Set(StateKey::Extra("ids"), std::string(R"({"__python__":"frozenset","items":[1]})"));
  EXPECT_THAT(NotesForDcp(state), testing::IsEmpty());
  EXPECT_THAT(NotesForTorchLoad(state), testing::ElementsAre(HasSubstr("\"ids\" holds a frozenset")));
  state.Set(StateKey::Extra("ema"),
            absl::StrCat(R"({"__python__":"OrderedDict","items":[["w",)", ReferenceText("ema.w"), "]]}"));
  EXPECT_THAT(NotesForDcp(state), testing::ElementsAre(HasSubstr("\"ema\" has a dict of tensors")));
}

}  // namespace
}  // namespace fsdp
