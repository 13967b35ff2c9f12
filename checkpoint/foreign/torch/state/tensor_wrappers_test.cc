// SPDX-License-Identifier: Apache-2.0
//
// What torch's pickler puts around tensors: parameters, and attributes that a program set on a tensor. They are left
// out, and a note says so. The pickles are the pickler's, of protocol 2.
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The arguments of _rebuild_tensor_v2 of a float32 [2].
const std::string kArguments =
    "((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"s
    "0X\3\0\0\0cpuK\2tQK\0K\2\x85K\1\x85\x89"s
    "ccollections\nOrderedDict\n)Rt"s;
const std::string kRebuild = "ctorch._utils\n_rebuild_tensor_v2\n";
const std::string kTensor = kRebuild + kArguments + "R";
const std::string kHooks = "ccollections\nOrderedDict\n)R";
const std::string kSet = "}X\3\0\0\0tagK\1s"s;  // {"tag": 1}

std::string Parameter(const std::string& tensor) {
  return "ctorch._utils\n_rebuild_parameter\n" + tensor + "\x88" + kHooks + "\x87R";
}

std::string ParameterWithState(const std::string& state) {
  return "ctorch._utils\n_rebuild_parameter_with_state\n(" + kTensor + "\x88" + kHooks + state + "tR";
}

std::string Typed(const std::string& type, const std::string& state) {
  return "ctorch._tensor\n_rebuild_from_type_v2\n(" + kRebuild + type + kArguments + state + "tR";
}

// {"model": {"w": `in_model`}, "ema": `extra`}
std::string Pickled(const std::string& in_model, const std::string& extra) {
  return "\x80\x02}(X\5\0\0\0model}X\1\0\0\0w"s + in_model + "sX\3\0\0\0ema"s + extra + "u.";
}

absl::StatusOr<std::vector<std::string>> NotesOf(const std::string& pickle) {
  FSDP_ASSIGN_OR_RETURN(TorchTree tree, ParseTorchTree(pickle));
  const TorchTensors& tensors = tree.tensors;
  const TorchLeafTypes types(static_cast<int64_t>(tensors.size()), [&tensors](int i) {
    return TorchLeafType{tensors.dtype(i), tensors.shape(i), -1, tensors.wrapper(i)};
  });
  FSDP_ASSIGN_OR_RETURN(const TorchState state, StateOfTree(std::move(tree.root), types));
  for (const StateKey& key : {StateKey::Model("w"), StateKey::Extra("ema")}) {
    const ShardedTensor* const tensor = state.contents.FindTensor(key);
    EXPECT_TRUE(tensor != nullptr && tensor->shape == Shape({2})) << key.ToString();
  }
  return state.layout.notes;
}

TEST(TensorWrappersTest, AParameterAmongExtraValuesIsNoted) {
  const std::string note = "1 extra value is a torch.nn.Parameter, read as a tensor, such as \"ema\"";
  EXPECT_THAT(NotesOf(Pickled(Parameter(kTensor), kTensor)).value(), IsEmpty());
  EXPECT_THAT(NotesOf(Pickled(kTensor, Parameter(kTensor))).value(), ElementsAre(note));
  EXPECT_THAT(NotesOf(Pickled(kTensor, Parameter(Parameter(kTensor)))).value(), ElementsAre(note));
  EXPECT_THAT(NotesOf(Pickled(kTensor, ParameterWithState("}"))).value(), ElementsAre(note));
  EXPECT_THAT(NotesOf(Pickled(kTensor, Typed("ctorch.nn.parameter\nParameter\n", "}"))).value(), ElementsAre(note));
}

// torch.nn.Buffer is a plain tensor with attributes; Megatron-Core's parameters have some. FSDP2 sets some of its own
// on the tensors of a model.
TEST(TensorWrappersTest, AttributesOfAnExtraTensorAreNotedAsLeftOut) {
  const std::string one = "1 extra tensor has attributes of Python, which are left out, such as \"ema\"";
  EXPECT_THAT(NotesOf(Pickled(kTensor, Typed("ctorch\nTensor\n", kSet))).value(), ElementsAre(one));
  EXPECT_THAT(NotesOf(Pickled(kTensor, Typed("ctorch\nTensor\n", kSet + "N\x86"))).value(), ElementsAre(one));
  EXPECT_THAT(NotesOf(Pickled(kTensor, ParameterWithState(kSet))).value(),
              ElementsAre(HasSubstr("1 extra value is a torch.nn.Parameter"), one));
  EXPECT_THAT(NotesOf(Pickled(kTensor, Typed("ctorch\nTensor\n", "}"))).value(), IsEmpty());
  EXPECT_THAT(NotesOf(Pickled(ParameterWithState(kSet), kTensor)).value(), IsEmpty());
}

TEST(TensorWrappersTest, AParameterOrTensorOfAnotherClassIsRefusedByName) {
  const std::string lazy = "ctorch.nn.parameter\nUninitializedParameter\n\x88\x85R";
  EXPECT_THAT(NotesOf(Pickled(kTensor, lazy)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"ema\" (an object of \"torch.nn.parameter.UninitializedParameter\", byte "),
                             HasSubstr("a lazy module, without a shape: run the module once"))));
  EXPECT_THAT(NotesOf(Pickled(kTensor, "ctorch.nn.parameter\nUninitializedBuffer\n\x88\x85R")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a lazy module, without a shape")));
  EXPECT_THAT(NotesOf(Pickled(kTensor, Typed("cmylib\nScaledTensor\n", kSet))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"mylib.ScaledTensor\"")));
}

}  // namespace
}  // namespace fsdp
