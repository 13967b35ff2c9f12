// SPDX-License-Identifier: Apache-2.0
//
// Inconsistent and unreadable checkpoints of DeepSpeed. Files of DeepSpeed itself are read by golden_formats_test.
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/deepspeed/zero_testutil.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kGolden[] = "checkpoint/foreign/deepspeed/testdata/";

ZeroCheckpoint Zero(int stage, int world) {
  return ZeroCheckpoint(stage, world, {{{"a.weight", {3, 5}}, {"b.weight", {4}}}, {{"n.bias", {7}}, {"one", {1}}}});
}

absl::StatusOr<std::vector<float>> Floats(const TensorSource& source, const StateKey& key) {
  absl::StatusOr<std::string> bytes = ReadWhole(source, key);
  if (!bytes.ok()) return bytes.status();
  std::vector<float> floats(bytes->size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes->data(), bytes->size());
  return floats;
}

void ExpectWhole(const ZeroCheckpoint& zero, const std::string& path) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(path));
  EXPECT_EQ(source->world_size(), zero.world);
  EXPECT_EQ(source->step(), 3);
  int p = 0;
  for (const auto& group : zero.groups) {
    for (const auto& [name, dims] : group) {
      std::vector<float> expected = zero.Elements(p++);
      ASSERT_OK_AND_ASSIGN(const std::vector<float> model, Floats(*source, StateKey::Model(name)));
      EXPECT_EQ(model, expected) << name;
      for (float& element : expected) element += 0.5F;
      ASSERT_OK_AND_ASSIGN(const std::vector<float> state, Floats(*source, StateKey::OptimState(name, "exp_avg")));
      EXPECT_EQ(state, expected) << name;
    }
  }
}

absl::Status StatusOf(const std::string& path, const TensorSourceOptions& options = {}) {
  return OpenDeepSpeedSource(path, options).status();
}

// The status of a checkpoint that `change` has changed.
absl::Status Changed(int stage, const std::function<void(ZeroCheckpoint&)>& change) {
  ZeroCheckpoint zero = Zero(stage, 2);
  change(zero);
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  return StatusOf(directory);
}

// A copy of a golden checkpoint.
std::string Copy(const std::string& name) {
  const std::string copy = NewTestDirectory() + "/" + fs::path(name).filename().string();
  fs::copy(kGolden + name, copy, fs::copy_options::recursive);
  return copy;
}

TEST(DeepSpeedSourceTest, RanksAreJoinedInTheOrderOfTheirNumbers) {
  for (const int stage : {1, 2, 3}) {
    for (const int world : {1, 2, 3, 12}) {
      const ZeroCheckpoint zero = Zero(stage, world);
      const std::string directory = NewTestDirectory() + "/global_step3";
      zero.Write(directory);
      ExpectWhole(zero, directory);
    }
  }
}

TEST(DeepSpeedSourceTest, ARankMayHaveOnlyPadding) {
  const ZeroCheckpoint zero(2, 4, {{{"w", {1}}}});
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  ExpectWhole(zero, directory);
}

// DeepSpeed's own reader joins all sub-groups of a rank before it cuts them.
TEST(DeepSpeedSourceTest, APieceMayLieInTwoSubGroups) {
  ZeroCheckpoint zero(3, 2, {{{"a", {6}}}, {{"b", {6}}}});
  for (int rank = 0; rank < 2; ++rank) {
    const auto first = static_cast<float>(3 * rank);
    for (const auto& [key, added] : {std::pair("fp32", 0.0F), std::pair("exp_avg", 0.5F)}) {
      const std::vector<float> all = {first + added,       first + 1 + added,   first + 2 + added,
                                      first + 100 + added, first + 101 + added, first + 102 + added};
      PythonJson parts[] = {FloatTensor({all.begin(), all.begin() + 4}, {4}),
                            FloatTensor({all.begin() + 4, all.end()}, {2})};
      PythonJson& state = zero.optim[rank]["optimizer_state_dict"];
      for (int i = 0; i < 2; ++i) {
        PythonJson& place = std::string(key) == "fp32"
                                ? state["fp32_flat_groups"][i]
                                : state["optimizer_state_dict"]["state"]["items"][i][1]["exp_avg"];
        place = parts[i];
      }
    }
  }
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  ExpectWhole(zero, directory);
}

TEST(DeepSpeedSourceTest, AMissingRankIsNamed) {
  for (const int rank : {0, 1, 2}) {
    for (const bool is_model : {false, true}) {
      const ZeroCheckpoint zero = Zero(3, 3);
      const std::string directory = NewTestDirectory() + "/global_step3";
      zero.Write(directory);
      const std::string name = is_model ? zero.ModelName(rank) : zero.OptimName(rank);
      fs::remove(directory + "/" + name);
      EXPECT_THAT(StatusOf(directory), StatusIs(absl::StatusCode::kNotFound, HasSubstr(name)));
    }
  }
  EXPECT_THAT(Changed(2, [](ZeroCheckpoint& zero) { zero.optim.clear(); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("optim_states.pt, which have the parameters")));
}

TEST(DeepSpeedSourceTest, FilesOfAnotherSaveAreRefused) {
  EXPECT_THAT(Changed(2, [](ZeroCheckpoint& zero) { zero.optim.push_back(zero.optim[0]); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("saved by 2 ranks, but there is \"zero_pp_rank_2_")));
  EXPECT_THAT(Changed(2,
                      [](ZeroCheckpoint& zero) {
                        zero.optim[1]["optimizer_state_dict"]["partition_count"] = PythonJson::array({3, 3});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("partition_count is 3")));
  EXPECT_THAT(Changed(2,
                      [](ZeroCheckpoint& zero) {
                        zero.optim[1]["optimizer_state_dict"]["base_optimizer_state"]["state"]["items"][0][1]["step"] =
                            FloatTensor({4}, {});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step, or another number of the optimizer, differs")));
  for (const char* const name : {"global_steps", "dp_world_size", "param_shapes"}) {
    EXPECT_THAT(
        Changed(3, [&](ZeroCheckpoint& zero) { zero.model[1][name] = name[0] == 'p' ? PythonJson() : PythonJson(4); }),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("its \"", name, "\" differs"))));
  }
}

TEST(DeepSpeedSourceTest, OtherKindsOfParallelismAreRefusedByName) {
  const std::map<std::string, PythonJson> entries = {{"mp_world_size", 2},
                                                     {"num_experts", PythonJson::array({4})},
                                                     {"ds_autoep_layers", {{"layer", 1}}},
                                                     {"ds_zero_partition_groups", PythonJson::array({1})}};
  for (const auto& [name, value] : entries) {
    EXPECT_THAT(Changed(2, [&](ZeroCheckpoint& zero) { zero.model[0][name] = value; }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
  EXPECT_OK(Changed(2, [&](ZeroCheckpoint& zero) { zero.model[0]["num_experts"] = PythonJson::array({0}); }));
  for (const char* const name :
       {"mp_rank_01_model_states.pt", "layer_01-model_00-model_states.pt",
        "layer_0_expert_3_mp_rank_00_model_states.pt", "expp_rank_0_mp_rank_00_optim_states.pt"}) {
    const std::string tag = Copy("z1_w2_fp32/global_step3");
    WriteAll(tag + "/" + name, "x");
    EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(DeepSpeedSourceTest, ShapesAndPartsMustAgree) {
  const auto shapes = [](int64_t size) {
    return [size](ZeroCheckpoint& zero) { zero.model[0]["param_shapes"][0]["items"][1][1] = TorchSize({size}); };
  };
  for (const int64_t size : {0, 1, 10, 1000}) {
    EXPECT_THAT(Changed(2, shapes(size)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of another save"))) << size;
  }
  // One more, which the padding has room for.
  EXPECT_THAT(Changed(2, shapes(5)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of another save")));
  EXPECT_THAT(Changed(2,
                      [](ZeroCheckpoint& zero) {
                        zero.model[0]["module"]["items"][1][1] = FloatTensor({1, 2, 3, 4}, {2, 2});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[2, 2] in \"module\", but [4]")));
  EXPECT_THAT(Changed(3,
                      [](ZeroCheckpoint& zero) {
                        for (PythonJson& model : zero.model) model["param_shapes"][0]["items"][1][1] = TorchSize({6});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of another save")));
  EXPECT_THAT(Changed(3,
                      [](ZeroCheckpoint& zero) {
                        zero.optim[1]["optimizer_state_dict"]["fp32_flat_groups"][1] = FloatTensor({1}, {1});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of group 1 has 1 elements, expected 5")));
  EXPECT_THAT(Changed(2, [](ZeroCheckpoint& zero) { zero.model[0]["param_shapes"].erase(1); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 2 groups, but param_shapes has 1 groups")));
  EXPECT_THAT(Changed(2,
                      [](ZeroCheckpoint& zero) {
                        zero.optim[0]["optimizer_state_dict"]["param_alignment_paddings"] = PythonJson::array({1, 2});
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("param_alignment_paddings")));
}

TEST(DeepSpeedSourceTest, HostileCountsAreRefused) {
  for (const int64_t size : {int64_t{-1}, int64_t{1} << 40, int64_t{1} << 62, INT64_MAX}) {
    EXPECT_THAT(Changed(2,
                        [&](ZeroCheckpoint& zero) {
                          zero.model[0]["param_shapes"][0]["items"][0][1] = TorchSize({size, 5});
                        }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
    EXPECT_THAT(Changed(2, [&](ZeroCheckpoint& zero) { zero.model[0]["dp_world_size"] = size; }), testing::Not(IsOk()))
        << size;
    EXPECT_THAT(Changed(2,
                        [&](ZeroCheckpoint& zero) {
                          for (PythonJson& optim : zero.optim) {
                            optim["optimizer_state_dict"]["param_alignment_paddings"] =
                                PythonJson::array({PythonJson::array({size, size}), PythonJson::array({0, 0})});
                          }
                        }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
    EXPECT_THAT(Changed(2,
                        [&](ZeroCheckpoint& zero) {
                          zero.optim[0]["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0]["params"] =
                              PythonJson::array({size});
                        }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
  }
}

TEST(DeepSpeedSourceTest, StateThatIsNotOneElementForEachIsRefusedUnlessOnlyTheModelIsWanted) {
  ZeroCheckpoint zero = Zero(2, 2);
  for (PythonJson& optim : zero.optim) {
    optim["optimizer_state_dict"]["base_optimizer_state"]["state"]["items"][0][1]["absmax"] = FloatTensor({1, 2}, {2});
  }
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  EXPECT_THAT(StatusOf(directory),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("state \"absmax\" of group 0")));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(directory, {.model_only = true}));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> read, Floats(*source, StateKey::Model("a.weight")));
  EXPECT_EQ(read, zero.Elements(0));
  EXPECT_FALSE(source->contents().contains(StateKey::ParamGroups()));
}

// zero_optimization.elastic_checkpoint: a list of the groups' states, a step of all, and no options.
ZeroCheckpoint Elastic(int stage, int world) {
  ZeroCheckpoint zero = Zero(stage, world);
  for (PythonJson& optim : zero.optim) {
    PythonJson& whole = optim["optimizer_state_dict"];
    PythonJson groups = PythonJson::array();
    for (const PythonJson& item : whole["base_optimizer_state"]["state"]["items"]) {
      groups.push_back(item[1]);
      groups.back().erase("step");
    }
    whole["base_optimizer_state"] = groups;
    whole["base_optimizer_state_step"] = 7;
  }
  return zero;
}

TEST(DeepSpeedSourceTest, AnElasticCheckpointHasTheStateOfEachParameterAndNoOptions) {
  for (const int world : {1, 2, 3}) {
    const ZeroCheckpoint zero = Elastic(2, world);
    const std::string directory = NewTestDirectory() + "/global_step3";
    zero.Write(directory);
    ExpectWhole(zero, directory);
    ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(directory));
    for (const char* const name : {"a.weight", "one"}) {
      const std::string* const step = source->contents().FindText(ExtraOfState(name, "step"));
      ASSERT_NE(step, nullptr) << name;
      EXPECT_EQ(*step, "7") << name;
    }
    EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("the options in param_groups, such as lr")));
  }
  EXPECT_THAT(Changed(2,
                      [](ZeroCheckpoint& zero) {
                        zero = Elastic(2, 2);
                        zero.optim[1]["optimizer_state_dict"]["base_optimizer_state"].erase(0);
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 1 groups, but param_shapes 2")));
}

TEST(DeepSpeedSourceTest, EveryRankMustHaveTheStateOfTheOthers) {
  EXPECT_THAT(
      Changed(2,
              [](ZeroCheckpoint& zero) {
                zero.optim[1]["optimizer_state_dict"]["base_optimizer_state"]["state"]["items"][0][1].erase("exp_avg");
              }),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("names of the optimizer's states differs")));
}

TEST(DeepSpeedSourceTest, AParameterWithoutElementsIsRefused) {
  EXPECT_THAT(
      Changed(3,
              [](ZeroCheckpoint& zero) {
                zero.model[0]["module"]["items"].push_back(PythonJson::array({"lost.weight", FloatTensor({}, {0})}));
              }),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the parameter \"lost.weight\" has no elements")));
  EXPECT_THAT(Changed(3,
                      [](ZeroCheckpoint& zero) {
                        zero.model[0]["module"]["items"].push_back(PythonJson::array({"tied", FloatTensor({}, {0})}));
                        zero.model[0]["shared_params"]["tied"] = "nowhere";
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"tied\" is \"nowhere\", which has no elements")));
  // Two names of each other.
  EXPECT_THAT(Changed(3,
                      [](ZeroCheckpoint& zero) {
                        for (const char* const name : {"x", "y"}) {
                          zero.model[0]["module"]["items"].push_back(PythonJson::array({name, FloatTensor({}, {0})}));
                        }
                        zero.model[0]["shared_params"] = {{"x", "y"}, {"y", "x"}};
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("which has no elements")));
}

TEST(DeepSpeedSourceTest, EntriesThatDifferBetweenRanksAreNamed) {
  ZeroCheckpoint zero = Zero(3, 2);
  zero.model[1]["note"] = "of rank 1";
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(directory));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"note\" of other ranks")));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("note")), "of the program");
}

TEST(DeepSpeedSourceTest, ObjectsOfDeepSpeedArePlainValues) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(std::string(kGolden) + "z1_w2_fp32"));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("loss_scaler")), R"({"cur_scale":1.0,"dynamic":false})");
  EXPECT_THAT(source->left_out(), IsEmpty());
  EXPECT_EQ(source->contents().aliases.at("head.weight"), "embed.weight");
}

TEST(DeepSpeedSourceTest, ZeroStage0SaysWhereItsFloat32ParametersAre) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(std::string(kGolden) + "z0_w2_bf16"));
  EXPECT_THAT(source->layout().notes, testing::Contains(HasSubstr("the optimizer's state \"fp32\"")));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("embed.weight"))->dtype, DType::kBFloat16);
  EXPECT_EQ(source->contents().FindTensor(StateKey::OptimState("embed.weight", "fp32"))->dtype, DType::kFloat32);
}

TEST(DeepSpeedSourceTest, ParamGroupsNameTheirParameters) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(std::string(kGolden) + "z3_w2_subgroups/global_step3"));
  const std::string* const groups = source->contents().FindText(StateKey::ParamGroups());
  ASSERT_NE(groups, nullptr);
  const auto json = nlohmann::json::parse(*groups);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["params"].size(), 7u);
  EXPECT_EQ(json[0]["params"][6], "body.2.2.weight");
  EXPECT_EQ(json[1]["params"].size(), 6u);
  EXPECT_EQ(json[1]["weight_decay"], 0.0);
}

TEST(DeepSpeedSourceTest, TheEnginesCountOfStepsCounts) {
  ZeroCheckpoint zero = Zero(2, 2);
  zero.model[0]["step"] = 70;
  zero.model[0]["global_step"] = 71;
  const std::string directory = NewTestDirectory() + "/global_step3";
  zero.Write(directory);
  ExpectWhole(zero, directory);
}

TEST(DeepSpeedSourceTest, TheOptimizerOfZeroStage0IsThatOfTorch) {
  ZeroCheckpoint zero = Zero(0, 1);
  zero.optim.clear();
  zero.model[0]["param_shapes"] = nullptr;
  zero.model[0]["optimizer"] = {
      {"state", {{kPythonTag, "dict"}, {"items", PythonJson::array()}}},
      {"param_groups", PythonJson::array({{{"lr", 0.5}, {"params", PythonJson::array({0, 1, 2, 3})}}})}};
  const std::string directory = NewTestDirectory() + "/global_step3";
  for (int p = 0; p < 4; ++p) {
    const auto& [name, dims] = zero.groups[p / 2][p % 2];
    std::vector<float> elements = zero.Elements(p);
    for (float& element : elements) element += 0.5F;
    zero.model[0]["optimizer"]["state"]["items"].push_back(
        PythonJson::array({p, {{"step", 3}, {"exp_avg", FloatTensor(elements, dims)}}}));
  }
  zero.Write(directory);
  ExpectWhole(zero, directory);
  // A fused optimizer's flat tensors have no names.
  zero.model[0]["optimizer"] = {{"optimizer_state_dict", zero.model[0]["optimizer"]},
                                {"fp32_groups_flat", PythonJson::array({FloatTensor({1}, {1})})}};
  zero.Write(directory);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(directory));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"optimizer\" (its state is in flat tensors")));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> read, Floats(*source, StateKey::Model("a.weight")));
  EXPECT_EQ(read, zero.Elements(0));
}

}  // namespace
}  // namespace fsdp
