// SPDX-License-Identifier: Apache-2.0
//
// A model is divided among ranks as Megatron-Core does it, by arithmetic of its own, and written to files of ranks.
#include "fsdp/checkpoint/foreign/megatron/rank_source.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/megatron/rank_arguments.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;  // 0: one dimension
  std::vector<float> values;
};
using Model = std::map<std::string, Matrix>;

struct Grid {
  int tensor = 1;
  int pipeline = 1;
  int expert = 1;
  int chunks = 1;  // of each stage
  bool gated = false;
  int experts = 0;  // of each expert parallel rank; 0: no experts

  int layers() const { return 2 * pipeline * chunks; }  // two in each chunk of each stage
};

constexpr int64_t kHidden = 8;

Matrix Numbered(int64_t rows, int64_t columns, float& next) {
  Matrix matrix = {rows, columns, std::vector<float>(rows * std::max<int64_t>(columns, 1))};
  for (float& value : matrix.values) value = next++;
  return matrix;
}

// The linear layers of a feed-forward network below `module`.
void AddMlp(const std::string& module, const Grid& grid, float& next, Model& model) {
  const int64_t width = 3 * grid.tensor;
  model[module + "linear_fc1.weight"] = Numbered(width * (grid.gated ? 2 : 1), kHidden, next);
  model[module + "linear_fc1.bias"] = Numbered(width * (grid.gated ? 2 : 1), 0, next);
  model[module + "linear_fc2.weight"] = Numbered(kHidden, width, next);
}

Model WholeModel(const Grid& grid) {
  Model model;
  float next = 1;
  model["embedding.word_embeddings.weight"] = Numbered(4 * grid.tensor, kHidden, next);
  for (int layer = 0; layer < grid.layers(); ++layer) {
    const std::string at = absl::StrCat("decoder.layers.", layer, ".");
    model[at + "input_layernorm.weight"] = Numbered(kHidden, 0, next);
    model[at + "self_attention.linear_qkv.weight"] = Numbered(6 * grid.tensor, kHidden, next);
    model[at + "self_attention.linear_proj.weight"] = Numbered(kHidden, 2 * grid.tensor, next);
    model[at + "self_attention.linear_proj.bias"] = Numbered(kHidden, 0, next);
    for (int e = 0; e < grid.experts * grid.expert; ++e) {
      AddMlp(absl::StrCat(at, "mlp.experts.local_experts.", e, "."), grid, next, model);
    }
    if (grid.experts == 0) AddMlp(at + "mlp.", grid, next, model);
  }
  model["decoder.final_layernorm.weight"] = Numbered(kHidden, 0, next);
  model["output_layer.weight"] = Numbered(4 * grid.tensor, kHidden, next);
  return model;
}

// Rows or columns [begin, begin + count).
Matrix Rows(const Matrix& matrix, int64_t begin, int64_t count) {
  const int64_t width = std::max<int64_t>(matrix.columns, 1);
  return {
      count, matrix.columns, {matrix.values.begin() + begin * width, matrix.values.begin() + (begin + count) * width}};
}

Matrix Columns(const Matrix& matrix, int64_t begin, int64_t count) {
  Matrix part = {matrix.rows, count, {}};
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = 0; i < count; ++i) part.values.push_back(matrix.values[row * matrix.columns + begin + i]);
  }
  return part;
}

Matrix PartOf(const std::string& name, const Matrix& whole, const Grid& grid, int t) {
  const auto ends = [&](const char* suffix) { return absl::EndsWith(name, suffix); };
  if (ends("linear_proj.weight") || ends("linear_fc2.weight")) {
    return Columns(whole, t * (whole.columns / grid.tensor), whole.columns / grid.tensor);
  }
  const bool is_fc1 = absl::StrContains(name, "linear_fc1.");
  const int64_t rows = whole.rows / grid.tensor;
  if (is_fc1 && grid.gated) {
    Matrix part = Rows(whole, t * (rows / 2), rows / 2);
    const Matrix up = Rows(whole, whole.rows / 2 + t * (rows / 2), rows / 2);
    part.values.insert(part.values.end(), up.values.begin(), up.values.end());
    part.rows = rows;
    return part;
  }
  const bool is_columns =
      is_fc1 || ends("linear_qkv.weight") || ends("embeddings.weight") || ends("output_layer.weight");
  return is_columns ? Rows(whole, t * rows, rows) : whole;
}

class RankSourceTest : public testing::Test {
 protected:
  const std::string directory_ = absl::StrCat(NewTestDirectory(), "/iter_0000012");

  // The local model of a rank: stage `p`'s layers of each chunk, experts of expert rank `e`.
  static std::map<std::string, Model> LocalModels(const Grid& grid, int t, int p, int e) {
    std::map<std::string, Model> models;
    for (int chunk = 0; chunk < grid.chunks; ++chunk) {
      Model& model = models[grid.chunks == 1 ? "model" : absl::StrCat("model", chunk)];
      const int first = 2 * (chunk * grid.pipeline + p);  // layer
      for (const auto& [name, whole] : WholeModel(grid)) {
        std::string local = name;
        int layer = -1;
        int expert = -1;
        for (int i = 0; i < grid.layers(); ++i) {
          if (absl::StartsWith(name, absl::StrCat("decoder.layers.", i, "."))) layer = i;
        }
        for (int i = 0; i < grid.experts * grid.expert; ++i) {
          if (absl::StrContains(name, absl::StrCat("local_experts.", i, "."))) expert = i;
        }
        const bool is_first = p == 0 && chunk == 0;
        const bool is_last = p == grid.pipeline - 1 && chunk == grid.chunks - 1;
        const bool is_here = layer >= 0                            ? layer == first || layer == first + 1
                             : absl::StartsWith(name, "embedding") ? is_first
                                                                   : is_last;
        if (!is_here || (expert >= 0 && expert / grid.experts != e)) continue;
        if (layer >= 0)
          local.replace(0, absl::StrCat("decoder.layers.", layer).size(),
                        absl::StrCat("decoder.layers.", layer - first));
        if (expert >= 0) {
          const std::string number = absl::StrCat("local_experts.", expert);
          local.replace(local.find(number), number.size(), absl::StrCat("local_experts.", expert % grid.experts));
        }
        model[local] = PartOf(name, whole, grid, t);
      }
    }
    return models;
  }

  static void Write(const std::string& path, const std::map<std::string, Model>& models, const char* iteration = "12",
                    const char* version = "3.0", const std::string& args = "") {
    fs::create_directories(fs::path(path).parent_path());
    StateDict state;
    std::map<StateKey, const Matrix*> values;
    for (const auto& [chunk, model] : models) {
      for (const auto& [name, matrix] : model) {
        // Written as {"model": {...}}; of several chunks each is an extra dict.
        const StateKey key = chunk == "model" ? StateKey::Model(name) : StateKey::Extra(absl::StrCat(chunk, ".", name));
        ShardedTensor tensor;
        tensor.shape =
            matrix.columns == 0 ? *Shape::Create({matrix.rows}) : *Shape::Create({matrix.rows, matrix.columns});
        state.Set(key, std::move(tensor));
        values[key] = &matrix;
      }
      if (chunk == "model") continue;
      std::string text;
      for (const auto& [name, matrix] : model) {
        absl::StrAppend(&text, text.empty() ? "{" : ",", "\"", name, R"(":{"__python__":"reference","name":")", chunk,
                        ".", name, "\"}");
      }
      state.Set(StateKey::Extra(chunk), text + "}");
    }
    state.Set(StateKey::Extra("iteration"), std::string(iteration));
    state.Set(StateKey::Extra("checkpoint_version"), std::string(version));
    if (!args.empty()) state.Set(StateKey::Extra("args"), args);
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      std::copy_n(values.at(key)->values.begin() + interval.begin, interval.size(), static_cast<float*>(out));
      return absl::OkStatus();
    };
    ASSERT_OK(WriteTorchFile(path, state, read, {.overwrite = true}));
  }

  std::string PathOf(const Grid& grid, int t, int p, int e) const {
    std::string name = absl::StrFormat("mp_rank_%02d", t);
    if (grid.pipeline > 1) absl::StrAppendFormat(&name, "_%03d", p);
    if (grid.expert > 1) absl::StrAppendFormat(&name, "_%03d", e);
    return absl::StrCat(directory_, "/", name, "/model_optim_rng.pt");
  }

  using Change = std::function<void(int t, int p, int e, Model& model)>;

  void WriteRanks(const Grid& grid, const Change& change = nullptr) {
    fs::remove_all(directory_);
    for (int e = 0; e < grid.expert; ++e) {
      for (int p = 0; p < grid.pipeline; ++p) {
        for (int t = 0; t < grid.tensor; ++t) {
          std::map<std::string, Model> models = LocalModels(grid, t, p, e);
          if (change) change(t, p, e, models.begin()->second);
          Write(PathOf(grid, t, p, e), models, "12", "3.0", args_);
        }
      }
    }
  }

  void ExpectWhole(const TensorSource& source, const Model& expected) {
    EXPECT_EQ(source.contents().aliases.size() + expected.size(), expected.size());
    size_t tensors = 0;
    for (const auto& [key, value] : source.contents().entries())
      tensors += std::holds_alternative<ShardedTensor>(value);
    EXPECT_EQ(tensors, expected.size());
    for (const auto& [name, matrix] : expected) {
      const absl::StatusOr<std::string> bytes = ReadWhole(source, StateKey::Model(name));
      ASSERT_OK(bytes.status()) << name;
      EXPECT_EQ(*bytes, std::string(reinterpret_cast<const char*>(matrix.values.data()), 4 * matrix.values.size()))
          << name;
    }
  }

  std::string args_;  // of every file, as JSON; empty: none

  absl::Status Status() const { return OpenMegatronRanks(directory_, directory_).status(); }
};

TEST_F(RankSourceTest, RanksOfEveryKindAreOneModel) {
  const std::vector<Grid> grids = {
      {.tensor = 1},
      {.tensor = 4, .gated = true},
      {.pipeline = 3},
      {.tensor = 4, .pipeline = 3},
      {.tensor = 2, .pipeline = 2, .chunks = 3, .gated = true},
      {.expert = 4, .gated = true, .experts = 2},
      {.tensor = 2, .expert = 2, .experts = 1},
      {.tensor = 4, .pipeline = 3, .expert = 4, .gated = true, .experts = 2},
  };
  for (const Grid& grid : grids) {
    SCOPED_TRACE(absl::StrCat(grid.tensor, " ", grid.pipeline, " ", grid.expert, " ", grid.chunks));
    WriteRanks(grid);
    ASSERT_OK_AND_ASSIGN(const auto source, OpenMegatronRanks(directory_, directory_));
    ExpectWhole(*source, WholeModel(grid));
    EXPECT_EQ(source->step(), 12);
    EXPECT_EQ(source->world_size(), grid.tensor * grid.pipeline * grid.expert);
    EXPECT_TRUE(source->left_out().empty());
  }
}

TEST_F(RankSourceTest, TheTiedOutputLayerIsAnAlias) {
  const Grid grid = {.tensor = 2, .pipeline = 2};
  WriteRanks(grid, [&](int t, int p, int, Model& model) {
    if (p == 1)
      model["output_layer.weight"] =
          PartOf("embeddings.weight", WholeModel(grid)["embedding.word_embeddings.weight"], grid, t);
  });
  ASSERT_OK_AND_ASSIGN(const auto source, OpenMegatronRanks(directory_, directory_));
  EXPECT_EQ(source->contents().aliases.at("output_layer.weight"), "embedding.word_embeddings.weight");
  EXPECT_FALSE(source->contents().contains(StateKey::Model("output_layer.weight")));
}

TEST_F(RankSourceTest, WhatRanksHaveAlikeIsCompared) {
  WriteRanks({.tensor = 2}, [](int t, int, int, Model& model) {
    model["decoder.layers.1.input_layernorm.weight"].values[3] += static_cast<float>(t);
  });
  EXPECT_THAT(std::string(Status().message()),
              HasSubstr("\"decoder.layers.1.input_layernorm.weight\" should be equal in all tensor parallel ranks, but "
                        "differs between mp_rank_00 and mp_rank_01"));
  WriteRanks({.expert = 2, .experts = 1}, [](int, int, int e, Model& model) {
    model["decoder.layers.0.self_attention.linear_qkv.weight"].values[0] += static_cast<float>(e);
  });
  EXPECT_THAT(std::string(Status().message()), HasSubstr("equal in all expert parallel ranks"));
}

// A copy whose CRC promises equal bytes is compared when the rest is verified.
TEST_F(RankSourceTest, ADamagedCopyIsFoundByVerify) {
  WriteRanks({.tensor = 2});
  const std::string path = PathOf({.tensor = 2}, 1, 0, 0);
  ASSERT_OK_AND_ASSIGN(const auto intact, OpenMegatronRanks(directory_, directory_));
  EXPECT_OK(VerifyRest(*intact));
  const std::vector<float> norm = WholeModel({.tensor = 2})["decoder.final_layernorm.weight"].values;
  std::string bytes = ReadFile(path);
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(norm.data()), 4 * norm.size()));
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  WriteAll(path, bytes);
  ASSERT_OK_AND_ASSIGN(const auto damaged, OpenMegatronRanks(directory_, directory_));
  EXPECT_THAT(VerifyRest(*damaged), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

TEST_F(RankSourceTest, MissingRanksThatTheArgsNameAreRefused) {
  args_ = R"({"tensor_model_parallel_size":2,"pipeline_model_parallel_size":2,"expert_model_parallel_size":1})";
  WriteRanks({.tensor = 2, .pipeline = 2});
  EXPECT_OK(Status());
  WriteRanks({.tensor = 1, .pipeline = 2});
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kDataLoss,
                                 HasSubstr("its args say tensor_model_parallel_size 2, but there are directories of 1: "
                                           "those of the other tensor parallel ranks are missing")));
  WriteRanks({.tensor = 2});
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("pipeline_model_parallel_size 2, but")));
}

TEST(RankArgumentsTest, NumbersOfANamespaceAreReadAndNothingElse) {
  const RankArguments arguments = ReadRankArguments("checkpoint/foreign/megatron/testdata/namespace.pt");
  EXPECT_EQ(arguments.tensor, 4);
  EXPECT_EQ(arguments.pipeline, 2);
  EXPECT_EQ(arguments.expert, 1);
  EXPECT_EQ(ReadRankArguments("checkpoint/foreign/megatron/testdata/gpt_tp1_w1.json").tensor, std::nullopt);
}

TEST_F(RankSourceTest, UnknownNamesAreRefused) {
  WriteRanks({.tensor = 2}, [](int, int, int, Model& model) {
    model["decoder.layers.0.mixer.in_proj.weight"] = {1, 1, {0}};
  });
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("\"decoder.layers.0.mixer.in_proj.weight\": it is not known how 2 tensor")));
  WriteRanks({.pipeline = 2}, [](int, int, int, Model& model) {
    model["decoder.layers.0.mixer.in_proj.weight"] = {1, 1, {0}};
  });
  EXPECT_OK(Status());  // no rank has a part of it
}

TEST_F(RankSourceTest, AUnitThatIsNeitherGatedNorPlainIsRefused) {
  WriteRanks({.tensor = 2}, [](int, int, int, Model& model) {
    model["decoder.layers.0.mlp.linear_fc1.weight"] = {5, kHidden, std::vector<float>(5 * kHidden)};
  });
  EXPECT_THAT(std::string(Status().message()), HasSubstr("so it is not known whether the unit is gated"));
}

TEST_F(RankSourceTest, WholeExpertsInEachRankAreRefused) {
  const Grid grid = {.tensor = 2, .expert = 2, .experts = 1};
  WriteRanks(grid, [](int, int, int, Model& model) {
    for (const char* name : {"linear_fc1.weight", "linear_fc2.weight"}) {
      Matrix& matrix = model[absl::StrCat("decoder.layers.0.mlp.experts.local_experts.0.", name)];
      matrix.values.assign(matrix.values.size(), 1);
    }
  });
  EXPECT_THAT(std::string(Status().message()),
              HasSubstr("is equal in all tensor parallel ranks, so it is whole in each"));
}

TEST_F(RankSourceTest, MissingRanksAreNamed) {
  const Grid grid = {.tensor = 2, .pipeline = 2};
  WriteRanks(grid);
  fs::remove_all(fs::path(PathOf(grid, 0, 1, 0)).parent_path());
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank mp_rank_0_1 is missing")));
  WriteRanks(grid);
  fs::remove(PathOf(grid, 0, 1, 0));
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("mp_rank_00_001")));
}

// Without the directories of the last ranks, the numbers of the others have no gap.
TEST_F(RankSourceTest, WhereAllDirectoriesOfLaterRanksAreMissingTheTensorsShowIt) {
  const Grid grid = {.tensor = 4, .pipeline = 2};
  WriteRanks(grid);
  for (int p = 0; p < grid.pipeline; ++p) {
    for (int t = 1; t < grid.tensor; ++t) fs::remove_all(fs::path(PathOf(grid, t, p, 0)).parent_path());
  }
  ASSERT_OK_AND_ASSIGN(const auto part, OpenMegatronRanks(directory_, directory_));
  EXPECT_THAT(part->layout().notes, testing::Contains(HasSubstr("may be the part of 1 of 4 tensor parallel ranks")));
  fs::remove_all(fs::path(PathOf(grid, 0, 1, 0)).parent_path());
  ASSERT_OK_AND_ASSIGN(const auto stage, OpenMegatronRanks(directory_, directory_));
  EXPECT_THAT(stage->layout().notes, testing::Contains(HasSubstr("the last pipeline stages are missing")));
  WriteRanks(grid);
  ASSERT_OK_AND_ASSIGN(const auto whole, OpenMegatronRanks(directory_, directory_));
  EXPECT_THAT(whole->layout().notes, testing::Not(testing::Contains(HasSubstr("missing"))));
}

TEST_F(RankSourceTest, FilesOfOtherStagesAndIterationsAreRefused) {
  const Grid grid = {.tensor = 2, .pipeline = 2};
  WriteRanks(grid);
  Write(PathOf(grid, 1, 0, 0), LocalModels(grid, 1, 1, 0));
  EXPECT_THAT(std::string(Status().message()), HasSubstr("the files of ranks were exchanged"));
  WriteRanks(grid);
  Write(PathOf(grid, 1, 0, 0), LocalModels(grid, 1, 0, 0), "13");
  EXPECT_THAT(std::string(Status().message()), HasSubstr("of another iteration"));
}

TEST_F(RankSourceTest, AnOlderOrderOfQueriesIsRefused) {
  const Grid grid;
  Write(PathOf(grid, 0, 0, 0), LocalModels(grid, 0, 0, 0), "12", "2.0");
  EXPECT_THAT(std::string(Status().message()),
              HasSubstr("is in the order of checkpoint_version 2, expected 3 or later"));
}

TEST_F(RankSourceTest, TheNameOfTheDirectoryMustFit) {
  const Grid grid;
  Write(PathOf(grid, 0, 0, 0), LocalModels(grid, 0, 0, 0), "13");
  EXPECT_THAT(Status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its files are of iteration 13")));
}

}  // namespace
}  // namespace fsdp
