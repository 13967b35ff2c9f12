// SPDX-License-Identifier: Apache-2.0
//
// The layouts that programs use, and what each of their branches is.
#include "fsdp/checkpoint/foreign/torch/state/torch_layout.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_testutil.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

// An optimizer of "0.weight" and "0.bias", by name, and by id.
constexpr char kByName[] = R"({"state": {"0.weight": {"step": 2, "exp_avg": "float32[4,3]"}},
                               "param_groups": [{"lr": 0.5, "params": ["0.weight", "0.bias"]}]})";
constexpr char kById[] = R"({"state": {"0": {"exp_avg": "float32[4,3]"}, "1": {"exp_avg": "float32[4]"}},
                             "param_groups": [{"lr": 0.5, "params": [0, 1]}]})";
constexpr char kModel[] = R"({"0.weight": "float32[4,3]", "0.bias": "float32[4]"})";

struct Case {
  const char* name;
  std::string tree;
  std::string text;                 // SourceLayout::text
  std::vector<std::string> model;   // names
  std::vector<std::string> optim;   // parameters with state
  std::vector<std::string> extras;  // names
};

std::string With(std::string tree) {
  for (const auto& [mark, text] :
       {std::pair<std::string, std::string>{"MODEL", kModel}, {"BY_NAME", kByName}, {"BY_ID", kById}}) {
    for (size_t at = tree.find(mark); at != tree.npos; at = tree.find(mark)) tree.replace(at, mark.size(), text);
  }
  return tree;
}

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {"APlainStateDict", R"(MODEL)", R"(model from the whole dict)", {"0.weight", "0.bias"}, {}, {}},
      {"UsualNames",
       R"({"model": MODEL, "optim": BY_NAME, "step": 3})",
       R"(model from "model", optimizer from "optim")",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {"step"}},
      {"AStatefulOfTheTutorial",
       R"({"app": {"model": MODEL, "optim": BY_NAME}, "lr": 0.5})",
       R"(model from "app.model", optimizer from "app.optim")",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {"lr"}},
      {"AStatefulWithoutAnOptimizer",
       R"({"app": {"model": MODEL, "rng": "uint8[16]"}})",
       R"(model from "app.model")",
       {"0.weight", "0.bias"},
       {},
       {"app.rng"}},
      {"TorchtitansTopLevel",
       R"({"0.weight": "float32[4,3]", "0.bias": "float32[4]",
           "optimizer": {"state.0.weight.exp_avg": "float32[4,3]", "param_groups.0.weight.lr": 0.5},
           "lr_scheduler": {"last_epoch": 1}, "train_state": {"step": "int32[]=1"}, "dataloader": {"x": "uint8[3]"}})",
       R"(model from the tensors at the top, optimizer from "optimizer")",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {"lr_scheduler", "train_state.step", "dataloader.x"}},
      {"AFlattenedOptimizerAmongTheModelsTensors",
       R"({"0.weight": "float32[4,3]", "0.bias": "float32[4]", "state.0.weight.exp_avg": "float32[4,3]",
           "state.0.weight.step": "float32[]", "param_groups.0.weight.lr": 0.5})",
       R"(model from the tensors at the top, optimizer from the top)",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {}},
      {"AnOptimizersMembersAmongTheModelsTensors",
       R"({"0.weight": "float32[4,3]", "0.bias": "float32[4]", "state": {"0.weight": {"exp_avg": "float32[4,3]"}},
           "param_groups": [{"params": ["0.weight"]}], "note": "x"})",
       R"(model from the tensors at the top, optimizer from the top)",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {"note"}},
      {"AModelUnderAnotherName",
       R"({"net": MODEL, "optimizer": BY_ID, "epoch": 3})",
       R"(model from "net" as "net.*", optimizer from "optimizer")",
       {"net.0.weight", "net.0.bias"},
       {"net.0.weight", "net.0.bias"},
       {"epoch"}},
      {"AModelOfOneTensorUnderAnotherName",
       R"({"weights": {"w": "float32[2]"}, "opt": {"state": {}, "param_groups": [{"params": [0]}]}})",
       R"(model from "weights" as "weights.*", optimizer from "opt")",
       {"weights.w"},
       {},
       {}},
      {"Lightning",
       R"({"epoch": 1, "global_step": 20, "pytorch-lightning_version": "2.5", "state_dict": MODEL, "loops": {},
           "callbacks": {"best": "float32[]"}, "optimizer_states": [BY_ID], "lr_schedulers": [{"last_epoch": 1}]})",
       R"(model from "state_dict", optimizer from "optimizer_states.0")",
       {"0.weight", "0.bias"},
       {"0.weight", "0.bias"},
       {"epoch", "global_step", "pytorch-lightning_version", "loops", "callbacks.best", "lr_schedulers"}},
      {"AGeneratorBesideADiscriminator",
       R"({"generator": MODEL, "discriminator": {"0.weight": "float32[1,4]"}, "opt_g": BY_ID,
           "opt_d": {"state": {"0": {"exp_avg": "float32[1,4]"}}, "param_groups": [{"params": [0]}]}})",
       R"(model from "generator" as "generator.*", "discriminator" as "discriminator.*", optimizer from "opt_g", "opt_d")",
       {"generator.0.weight", "generator.0.bias", "discriminator.0.weight"},
       {"generator.0.weight", "generator.0.bias", "discriminator.0.weight"},
       {}},
      {"ADiscriminatorBesideTheModel",
       R"({"model": MODEL, "discriminator": MODEL, "ema": MODEL, "optimizer": BY_ID, "optimizer_d": BY_ID})",
       R"(model from "model", "discriminator" as "discriminator.*", optimizer from "optimizer", "optimizer_d")",
       {"0.weight", "0.bias", "discriminator.0.weight", "discriminator.0.bias"},
       {"0.weight", "0.bias", "discriminator.0.weight", "discriminator.0.bias"},
       {"ema.0.weight", "ema.0.bias"}},
      {"APairOfEach",
       R"({"a": {"model": MODEL, "optim": BY_NAME}, "b": {"model": {"w": "float32[2]"}, "step": 5}})",
       R"(model from "a.model" as "a.*", "b.model" as "b.*", optimizer from "a.optim")",
       {"a.0.weight", "a.0.bias", "b.w"},
       {"a.0.weight"},
       {"b.step"}},
      {"OnlyAnOptimizer", R"(BY_NAME)", R"(no model, optimizer from the top)", {}, {"0.weight"}, {}},
      {"MomentsWithoutGroups",
       R"({"model": MODEL, "optimizer": {"state": {"0.weight": {"exp_avg": "float32[4,3]"}}}})",
       R"(model from "model", optimizer from "optimizer")",
       {"0.weight", "0.bias"},
       {"0.weight"},
       {}},
      {"MomentsByName",
       R"({"0.weight": "float32[4,3]", "exp_avg": {"0.weight": "float32[4,3]"}})",
       R"(model from the whole dict)",
       {"0.weight"},
       {},
       {"exp_avg.0.weight"}},
      {"AModuleNamedState",
       R"({"state.proj.weight": "float32[4,3]", "state.proj.bias": "float32[4]"})",
       R"(model from the whole dict)",
       {"state.proj.weight", "state.proj.bias"},
       {},
       {}},
      {"CountersAndGeneratorsAreNoModel",
       R"({"cpu": {"state": "uint8[16]"}, "scale": {"growth": 2}})",
       R"(no model)",
       {},
       {},
       {"cpu.state", "scale"}},
      {"IntegersAlone", R"({"ids": "int64[4]"})", R"(model from the whole dict)", {"ids"}, {}, {}},
      {"NoTensorAtAll", R"({"last_epoch": 3})", R"(no model)", {}, {}, {"last_epoch"}},
  };
  return *cases;
}

class TorchLayoutTest : public testing::TestWithParam<Case> {};

TEST_P(TorchLayoutTest, IsDividedByStructure) {
  const Case& layout = GetParam();
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(With(layout.tree)).State());
  EXPECT_EQ(state.layout.text, layout.text);
  std::vector<std::string> model, optim, extras;
  for (const auto& [key, value] : state.contents.entries()) {
    if (key.section == StateKey::Section::kModel) model.push_back(key.fqn);
    const bool is_extra = key.section == StateKey::Section::kExtra && !StateOfKey(key);
    if (is_extra && !IsForm(value)) extras.push_back(key.fqn);
    const bool is_new = optim.empty() || optim.back() != key.fqn;
    if (key.section == StateKey::Section::kOptimState && is_new) optim.push_back(key.fqn);
  }
  EXPECT_THAT(model, ElementsAreArray(layout.model));
  EXPECT_THAT(optim, ElementsAreArray(layout.optim));
  EXPECT_THAT(extras, ElementsAreArray(layout.extras));
}

INSTANTIATE_TEST_SUITE_P(All, TorchLayoutTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TorchLayoutTest, OnlyUsualLayoutsNeedNoNote) {
  for (const char* tree :
       {"MODEL", R"({"model": MODEL, "optimizer": BY_NAME, "step": 1})", R"({"state_dict": MODEL})"}) {
    ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(With(tree)).State());
    EXPECT_TRUE(state.layout.is_usual) << tree;
    EXPECT_THAT(state.layout.notes, IsEmpty());
  }
  for (const char* tree : {R"({"net": MODEL, "optimizer": BY_NAME})", R"({"app": {"model": MODEL}})",
                           R"({"model": MODEL, "ema": MODEL})"}) {
    ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(With(tree)).State());
    EXPECT_FALSE(state.layout.is_usual) << tree;
  }
}

TEST(TorchLayoutTest, AnotherModelBesideTheUsualOneIsNamed) {
  ASSERT_OK_AND_ASSIGN(const TorchState state, TestTree(With(R"({"model": MODEL, "ema": MODEL})")).State());
  EXPECT_THAT(state.layout.notes, ElementsAre("\"ema\" looks like a model too, and became an extra value: "
                                              "TensorSourceOptions::map=BRANCH=model takes one"));
  EXPECT_TRUE(state.contents.contains(StateKey::Extra("ema.0.weight")));
}

TorchStateOptions Map(const std::vector<std::string>& roles) {
  TorchStateOptions options;
  for (const std::string& role : roles) options.map.push_back(*ParseTensorRole(role));
  return options;
}

TEST(TorchLayoutTest, TheCallersRolesComeFirst) {
  const TestTree tree(With(R"({"model": MODEL, "a.b": {"ema": {"w": "float32[2]"}}, "optim": BY_NAME})"));
  ASSERT_OK_AND_ASSIGN(const TorchState ema, tree.State(Map({"a.b.ema=model", "optim=extra"})));
  EXPECT_EQ(ema.layout.text, R"(model from "a.b.ema")");
  EXPECT_THAT(Listing(ema.contents),
              ElementsAre("extra/model.0.weight float32[4, 3]", "extra/model.0.bias float32[4]", "model/w float32[2]",
                          "extra/optim.state.0.weight.step = 2", "extra/optim.state.0.weight.exp_avg float32[4, 3]",
                          HasSubstr("extra/optim.param_groups = ")));
  ASSERT_OK_AND_ASSIGN(const TorchState both, tree.State(Map({"a.b.ema=model.ema", "model=model"})));
  EXPECT_TRUE(both.contents.contains(StateKey::Model("ema.w")));
  EXPECT_TRUE(both.contents.contains(StateKey::OptimState("0.weight", "exp_avg")));
}

TEST(TorchLayoutTest, ARoleOfNoBranchIsAnErrorWithTheBranches) {
  const TestTree tree(With(R"({"model": MODEL, "optim": BY_NAME})"));
  EXPECT_THAT(tree.State(Map({"modle=model"})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(R"(map has "modle", and there is no such branch: at the top are "model", "optim")")));
  EXPECT_THAT(tree.State(Map({"model=optim"})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("an optimizer, which has \"state\"")));
}

TEST(TorchLayoutTest, TwoUsualNamesOfOneDictAreAnErrorWithAWayOut) {
  const TestTree tree(R"({"x": {"model": {"w": "float32[2]"}, "state_dict": {"w": "float32[2]"}}})");
  EXPECT_THAT(tree.State(), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("it has both \"model\" and \"state_dict\", and only one of them can be "
                                               "meant: TensorSourceOptions::map=x.state_dict=extra")));
  EXPECT_OK(tree.State(Map({"x.state_dict=extra"})));
}

}  // namespace
}  // namespace fsdp
