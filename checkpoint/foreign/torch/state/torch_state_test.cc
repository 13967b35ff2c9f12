// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of every kind, and the names of parameters, in a whole state dict.
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;

constexpr char kModel[] = R"("model": {"w": "float32[4,3]", "b": "float32[4]"})";

absl::StatusOr<TorchState> StateOf(const std::string& members) {
  return TestTree(absl::StrCat("{", kModel, ", ", members, "}")).State();
}

// {"optimizer": ...} of both parameters, by id, in one group.
std::string OneGroup(const std::string& of_w, const std::string& of_b) {
  return absl::StrCat(R"("optimizer": {"state": {"0": )", of_w, R"(, "1": )", of_b,
                      R"(}, "param_groups": [{"lr": 0.5, "params": [0, 1]}]})");
}

std::vector<std::string> OptimizerOf(const TorchState& state) {
  std::vector<std::string> lines;
  for (const std::string& line : Listing(state.contents)) {
    if (line.rfind("optim/state", 0) == 0 || line.rfind("extra/", 0) == 0) lines.push_back(line);
  }
  return lines;
}

TEST(TorchStateTest, StateOfOtherShapesGoesToTheModelsOrder) {
  struct Case {
    const char* name;
    const char* of_w;
    const char* of_b;
    const char* expected;  // one line of the result
  };
  for (const Case& optimizer : {
           Case{"Adafactor of torch", R"({"row_var": "float32[4,1]", "col_var": "float32[1,3]"})",
                R"({"variance": "float32[4]"})", "optim/state/w/row_var float32[4, 1]"},
           Case{"Adafactor of transformers", R"({"exp_avg_sq_row": "float32[4]", "exp_avg_sq_col": "float32[3]"})",
                R"({"exp_avg_sq": "float32[4]"})", "optim/state/w/exp_avg_sq_col float32[3]"},
           Case{"8-bit", R"({"state1": "uint8[4,3]", "absmax1": "float32[1]", "qmap1": "float32[256]"})",
                R"({"state1": "uint8[4]", "absmax1": "float32[1]", "qmap1": "float32[256]"})",
                "optim/state/b/qmap1 float32[256]"},
           Case{"Shampoo", R"({"statistics": ["float32[4,4]", "float32[3,3]"]})", R"({"statistics": ["float32[4,4]"]})",
                "optim/state/w/statistics.[1] float32[3, 3]"},
           Case{"SOAP", R"({"exp_avg": "float32[4,3]", "GG": ["float32[4,4]", []]})",
                R"({"exp_avg": "float32[4]", "GG": ["float32[4,4]"]})", "extra/optim/state/w/GG.[1] = []"},
           Case{"Adam-mini", R"({"m": "float32[4,3]", "vmean": "float32[4,1]"})",
                R"({"m": "float32[4]", "vmean": "float32[]"})", "optim/state/w/vmean float32[4, 1]"},
           Case{"Sophia", R"({"exp_avg": "float32[4,3]", "hessian": "float32[4,3]"})",
                R"({"exp_avg": "float32[4]", "hessian": "float32[4]"})", "optim/state/b/hessian float32[4]"},
           Case{"nested", R"({"quant.x": {"state1": "uint8[4,3]", "name": "nf4"}})",
                R"({"quant.x": {"state1": "uint8[4]"}})", "extra/optim/state/w/quant%252Ex.name = nf4"},
       }) {
    ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(OneGroup(optimizer.of_w, optimizer.of_b)));
    EXPECT_THAT(OptimizerOf(state), Contains(optimizer.expected)) << optimizer.name;
    EXPECT_THAT(state.layout.notes, IsEmpty()) << optimizer.name;
    ASSERT_NE(state.contents.FindText(StateKey::ParamGroups()), nullptr);
    EXPECT_EQ(*state.contents.FindText(StateKey::ParamGroups()), R"([{"lr":0.5,"params":["w","b"]}])");
  }
}

TEST(TorchStateTest, ShapesOfOtherStateDecideBetweenGroups) {
  const std::string groups = R"("param_groups": [{"params": [0]}, {"params": [1]}])";
  ASSERT_OK_AND_ASSIGN(
      const TorchState state,
      StateOf(absl::StrCat(R"("opt": {"state": {"0": {"state1": "uint8[4]"}, "1": {"state1": "uint8[4,3]"}}, )", groups,
                           "}")));
  EXPECT_THAT(OptimizerOf(state), ElementsAre("optim/state/b/state1 uint8[4]", "optim/state/w/state1 uint8[4, 3]"));
}

TEST(TorchStateTest, StateThatFitsNoParameterIsCarriedWithTheReason) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(OneGroup(R"({"row_var": "float32[5,1]"})", R"({"step": 2})")));
  EXPECT_THAT(OptimizerOf(state),
              ElementsAre("extra/optimizer.state.0.row_var float32[5, 1]", "extra/optimizer.state.1 = {\"step\":2}",
                          "extra/optimizer.param_groups = [{\"lr\":0.5,\"params\":[0,1]}]"));
  EXPECT_THAT(
      state.layout.notes,
      ElementsAre(AllOf(HasSubstr("\"optimizer\" became extra values: "),
                        HasSubstr("state \"row_var\" of shape [5, 1] of id 0 cannot be a state of \"w\" of shape "
                                  "[4, 3]: the order of the groups is another, or the optimizer keeps states of other "
                                  "shapes; save it by name"))));
  EXPECT_FALSE(state.layout.is_usual);
  EXPECT_NE(state.contents.FindText(StateKey::Extra("optimizer")), nullptr) << "it is not written back as one dict";
}

TEST(TorchStateTest, AnOptimizerByIdWithoutAModelIsCarried) {
  ASSERT_OK_AND_ASSIGN(
      const TorchState state,
      TestTree(R"({"state": {"0": {"exp_avg": "float32[4,3]"}}, "param_groups": [{"params": [0]}]})").State());
  EXPECT_THAT(Listing(state.contents),
              ElementsAre("extra/state.0.exp_avg float32[4, 3]", "extra/param_groups = [{\"params\":[0]}]"));
  EXPECT_THAT(state.layout.notes,
              ElementsAre(HasSubstr("the optimizer became extra values: the optimizer state goes by parameter id, and "
                                    "the model that gives ids their order is not in the same file")));
}

TEST(TorchStateTest, AModelIsReadWhateverItsOptimizerIs) {
  const TestTree tree(R"({"model": {"w": "float32[3]"}, "optim": {"state": {}, "param_groups": [{"params": [0, 1, 2]}]},
                          "step": 7})");
  ASSERT_OK_AND_ASSIGN(const TorchState state, tree.State({.model_only = true}));
  EXPECT_TRUE(state.contents.contains(StateKey::Model("w")));
  EXPECT_EQ(state.contents.FindText(StateKey::ParamGroups()), nullptr);
  EXPECT_EQ(state.step, 7);
  ASSERT_OK_AND_ASSIGN(const TorchState whole, tree.State());
  EXPECT_THAT(whole.layout.notes, ElementsAre(HasSubstr("there are 3 of them, but 1 parameters in the model")));
}

TEST(TorchStateTest, OtherMembersOfAnOptimizersDictAreExtraValues) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(R"("optimizer": {"state": {"w": {"exp_avg": "float32[4,3]"}},
                                  "param_groups": [{"params": ["w"]}], "scaler": {"scale": "float32[]"}, "kind": "x"})"));
  EXPECT_THAT(OptimizerOf(state), ElementsAre("extra/optimizer.scaler.scale float32[]", "extra/optimizer.kind = x",
                                              "optim/state/w/exp_avg float32[4, 3]"));
}

TEST(TorchStateTest, ValuesNoneAreCountedButKeptInLists) {
  ASSERT_OK_AND_ASSIGN(
      const TorchState state,
      StateOf(OneGroup(R"({"momentum_buffer": null, "Q": ["float32[4,4]", null]})", R"({"momentum_buffer": null})")));
  EXPECT_THAT(OptimizerOf(state), ElementsAre("optim/state/w/Q.[0] float32[4, 4]", "extra/optim/state/w/Q.[1] = null"));
  EXPECT_THAT(state.layout.notes, ElementsAre("2 values None of the optimizer's state left out, such as "
                                              "\"optim/state/w/momentum_buffer\""));
}

TEST(TorchStateTest, NumbersOfPythonStayNumbers) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(OneGroup(R"({"step": 3, "exp_avg": "float32[4,3]"})",
                                                                R"({"step": 3.0, "warm": true})")));
  EXPECT_THAT(OptimizerOf(state), ElementsAre("extra/optim/state/w/step = 3", "optim/state/w/exp_avg float32[4, 3]",
                                              "extra/optim/state/b/step = 3.0", "extra/optim/state/b/warm = true"));
}

TEST(TorchStateTest, SeveralOptimizersByIdOverOneModelAreMergedTogether) {
  ASSERT_OK_AND_ASSIGN(
      const TorchState state,
      StateOf(R"("muon": {"state": {"0": {"momentum_buffer": "float32[4,3]"}}, "param_groups": [{"params": [0]}]},
                 "adam": {"state": {"0": {"exp_avg": "float32[4]"}}, "param_groups": [{"params": [0]}]})"));
  EXPECT_THAT(OptimizerOf(state),
              ElementsAre("optim/state/w/momentum_buffer float32[4, 3]", "optim/state/b/exp_avg float32[4]"));
  EXPECT_EQ(*state.contents.FindText(StateKey::ParamGroups()),
            R"([{"params":["w"],"optimizer":"muon"},{"params":["b"],"optimizer":"adam"}])");
}

// Both optimizers fit both models, so their names decide.
constexpr char kGan[] = R"({"netG": {"0.weight": "float32[4,3]"}, "netD": {"0.weight": "float32[4,3]"},
    "FIRST": {"state": {"0": {"exp_avg": "float32[4,3]"}}, "param_groups": [{"params": [0]}]},
    "SECOND": {"state": {"0.weight": {"exp_avg": "float32[4,3]"}}, "param_groups": [{"params": ["0.weight"]}]}})";

std::string Gan(const std::string& first, const std::string& second) {
  std::string tree = kGan;
  tree.replace(tree.find("FIRST"), 5, first);
  return tree.replace(tree.find("SECOND"), 6, second);
}

TEST(TorchStateTest, NamesTellWhichOptimizerIsWhichModels) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(Gan("optimizer_D", "optG")).State());
  EXPECT_THAT(OptimizerOf(state), ElementsAre("optim/state/netD.0.weight/exp_avg float32[4, 3]",
                                              "optim/state/netG.0.weight/exp_avg float32[4, 3]"));
  EXPECT_EQ(*state.contents.FindText(StateKey::ParamGroups()),
            R"([{"params":["netD.0.weight"],"optimizer":"optimizer_D"},)"
            R"({"params":["netG.0.weight"],"optimizer":"optG"}])");
}

TEST(TorchStateTest, OptimizersThatMayBelongToTwoModelsAreCarried) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(Gan("opt1", "opt2")).State());
  EXPECT_THAT(OptimizerOf(state), IsSupersetOf({"extra/opt1.state.0.exp_avg float32[4, 3]",
                                                "extra/opt2.state.0.weight.exp_avg float32[4, 3]"}));
  EXPECT_THAT(state.layout.notes,
              Contains(HasSubstr("\"opt1\" became extra values: its parameters can be \"netG.*\" and \"netD.*\"; "
                                 "TensorSourceOptions::map=opt1=optim.PREFIX says whose they are")));
}

// Regression: the ids were given out in the order of the file, and either model could have the other's moments.
TEST(TorchStateTest, IdsThatGoThroughModelsOfEqualShapesAreCarried) {
  const std::string moments = R"({"exp_avg": "float32[4,3]"})";
  const auto tree = [&](const std::string& models, const std::string& groups) {
    return absl::StrCat("{", models, R"(, "optimizer": {"state": {"0": )", moments, R"(, "1": )", moments,
                        R"(}, "param_groups": [{"params": [0, 1])", groups, "}]}}");
  };
  const std::string equal = R"("q1": {"0.weight": "float32[4,3]"}, "q2": {"0.weight": "float32[4,3]"})";
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(tree(equal, "")).State());
  EXPECT_THAT(OptimizerOf(state), Contains("extra/optimizer.state.1.exp_avg float32[4, 3]"));
  EXPECT_THAT(
      state.layout.notes,
      Contains(HasSubstr("\"optimizer\" became extra values: its ids go through 2 models, and the file does not "
                         "say whether \"q1.*\" or \"q2.*\" comes first; save it by name")));
  // Names, and shapes that differ, say it.
  const std::string named = R"(, "param_names": ["q2.0.weight", "q1.0.weight"])";
  ASSERT_OK_AND_ASSIGN(const TorchState by_name, TestTree(tree(equal, named)).State());
  EXPECT_TRUE(by_name.contents.contains(StateKey::OptimState("q1.0.weight", "exp_avg")));
  const std::string other =
      R"("enc": {"0.weight": "float32[4,3]"}, "dec": {"0.weight": "float32[4,3]", "0.bias": "float32[4]"})";
  std::string three = tree(other, "");
  three.replace(three.find(R"("params": [0, 1])"), 16, R"("params": [0, 1, 2])");
  three.replace(three.find(R"("state": {)"), 10, R"("state": {"2": {"exp_avg": "float32[4]"}, )");
  ASSERT_OK_AND_ASSIGN(const TorchState in_order, TestTree(three).State());
  EXPECT_TRUE(in_order.contents.contains(StateKey::OptimState("dec.0.bias", "exp_avg")));
}

// Regression: the file was refused, as if this were a flat parameter of FSDP1 whose layout is missing.
TEST(TorchStateTest, AnOptimizerOfATensorThatIsNotInTheModelIsCarried) {
  const std::string alpha =
      R"("alpha_optim": {"state": {"0": {"exp_avg": "float32[1]"}}, "param_groups": [{"params": [0]}]})";
  const std::string other = OneGroup(R"({"exp_avg": "float32[4,3]"})", R"({"exp_avg": "float32[4]"})");
  for (const std::string& members : {alpha, absl::StrCat(other, ", ", alpha)}) {
    ASSERT_OK_AND_ASSIGN(const TorchState state, StateOf(members));
    EXPECT_THAT(OptimizerOf(state), Contains("extra/alpha_optim.state.0.exp_avg float32[1]"));
    EXPECT_THAT(state.layout.notes, ElementsAre(AllOf(HasSubstr("\"alpha_optim\" became extra values: "),
                                                      HasSubstr("there are 1 of them, but 2 parameters"))));
    EXPECT_EQ(state.contents.contains(StateKey::OptimState("w", "exp_avg")), members != alpha);
  }
}

TEST(TorchStateTest, AGroupKeepsTheOptimizerThatAnEarlierConversionNoted) {
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       StateOf(R"("optim": {"state": {}, "param_groups": [{"params": ["w"], "optimizer": "muon"}]},
                 "adam": {"state": {}, "param_groups": [{"params": ["b"]}]})"));
  EXPECT_EQ(*state.contents.FindText(StateKey::ParamGroups()),
            R"([{"params":["w"],"optimizer":"muon"},{"params":["b"],"optimizer":"adam"}])");
}

TEST(TorchStateTest, OptimizersThatWouldShareAParameterAreCarried) {
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       StateOf(R"("a": {"state": {"0": {"exp_avg": "float32[4,3]"}}, "param_groups": [{"params": [0]}]},
                 "b": {"state": {"0": {"exp_avg_sq": "float32[4,3]"}}, "param_groups": [{"params": [0]}]},
                 "c": {"state": {"b": {"exp_avg": "float32[4]"}}, "param_groups": [{"params": ["b"]}]})"));
  EXPECT_THAT(OptimizerOf(state),
              IsSupersetOf({"extra/a.state.0.exp_avg float32[4, 3]", "extra/b.state.0.exp_avg_sq float32[4, 3]",
                            "optim/state/b/exp_avg float32[4]"}));
  EXPECT_THAT(state.layout.notes, ElementsAre("\"a\" became extra values: \"w\" would have state of it and of \"b\"",
                                              "\"b\" became extra values: \"w\" would have state of it and of \"a\""));
}

TEST(TorchStateTest, WrappersPartsOfNamesAreTakenOutOfModelAndOptimizer) {
  const TestTree tree(R"({"model": {"module._orig_mod.a.weight": "float32[2]",
                                    "module.b._fsdp_wrapped_module._checkpoint_wrapped_module.weight": "float32[3]"},
                          "optim": {"state": {"module.a.weight": {"exp_avg": "float32[2]"}},
                                    "param_groups": [{"params": ["module.a.weight", "b.weight"]}]}})");
  ASSERT_OK_AND_ASSIGN(const TorchState state, tree.State());
  EXPECT_THAT(Listing(state.contents), ElementsAre("model/a.weight float32[2]", "model/b.weight float32[3]",
                                                   "optim/state/a.weight/exp_avg float32[2]",
                                                   "optim/param_groups = [{\"params\":[\"a.weight\",\"b.weight\"]}]"));
  EXPECT_THAT(state.layout.notes,
              ElementsAre("left out of 2 names, where wrappers put it: \"module.\", \"_checkpoint_wrapped_module.\", "
                          "\"_fsdp_wrapped_module.\", \"_orig_mod.\""));
}

TEST(TorchStateTest, ModelTensorsWithNamesOfMomentsAreNoted) {
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       TestTree(R"({"a.w": "float32[2]", "a.w.exp_avg": "float32[2]"})").State());
  EXPECT_THAT(state.layout.notes,
              ElementsAre("1 tensor of the model named as an optimizer's state, such as \"a.w.exp_avg\""));
}

TEST(TorchStateTest, AModuleNamedModuleKeepsItsName) {
  ASSERT_OK_AND_ASSIGN(
      const TorchState state,
      TestTree(R"({"n_averaged": "int64[]", "module.a": "float32[2]", "x_orig_mod.b": "float32[2]"})").State());
  EXPECT_TRUE(state.contents.contains(StateKey::Model("module.a")));
  EXPECT_TRUE(state.contents.contains(StateKey::Model("x_orig_mod.b")));
  EXPECT_THAT(state.layout.notes, IsEmpty());
}

}  // namespace
}  // namespace fsdp
