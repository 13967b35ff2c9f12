// SPDX-License-Identifier: Apache-2.0
//
// Directories with a torch file of each rank: copies, shards, and files that are neither.
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"

#include <cstring>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const auto kInvalid = absl::StatusCode::kInvalidArgument;

// Writes and reads files of ranks whose float32 elements are `first`, `first` + 1, ...
class RankFilesTest : public testing::Test {
 protected:
  struct Value {
    StateKey key;
    Shape shape;
    float first = 0;
    DType dtype = DType::kFloat32;
  };

  void Save(const std::string& name, const std::vector<Value>& values,
            const std::vector<std::pair<std::string, std::string>>& texts = {}) const {
    StateDict state;
    for (const Value& value : values) {
      ShardedTensor tensor;
      tensor.dtype = value.dtype;
      tensor.shape = value.shape;
      state.Set(value.key, tensor);
    }
    for (const auto& [key, text] : texts) state.Set(StateKey::Extra(key), text);
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      const auto at = std::find_if(values.begin(), values.end(), [&](const Value& value) { return value.key == key; });
      for (int64_t i = interval.begin; i < interval.end; ++i) {
        const float element = at->first + static_cast<float>(i);
        if (at->dtype == DType::kUInt8) {
          static_cast<uint8_t*>(out)[i - interval.begin] = static_cast<uint8_t>(element);
        } else {
          std::memcpy(static_cast<char*>(out) + (i - interval.begin) * 4, &element, 4);
        }
      }
      return absl::OkStatus();
    };
    ASSERT_OK(WriteTorchFile(directory_ + "/" + name, state, read));
  }

  // The float32 elements of a tensor, with its shape before them: "[2, 2] 0 1 2 3".
  static std::string Elements(const TensorSource& source, const StateKey& key) {
    const ShardedTensor* const tensor = source.contents().FindTensor(key);
    if (tensor == nullptr) return "missing";
    std::string text = tensor->shape.ToString();
    const std::string bytes = ReadWhole(source, key).value();
    for (size_t i = 0; i < bytes.size(); i += 4) {
      float element = 0;
      std::memcpy(&element, &bytes[i], 4);
      absl::StrAppend(&text, " ", element);
    }
    return text;
  }

  const std::string directory_ = NewTestDirectory();
  const StateKey w_ = StateKey::Model("w");
  const StateKey b_ = StateKey::Model("b");
  const StateKey state_of_w_ = StateKey::OptimState("w", "exp_avg");
  const StateKey state_of_b_ = StateKey::OptimState("b", "exp_avg");
};

TEST_F(RankFilesTest, CopiesOfEveryRankAreOneCheckpoint) {
  for (const char* name : {"rank0.pt", "rank1.pt", "rank2.pt"}) {
    Save(name, {{w_, {2, 3}, 1}, {b_, {2}, 7}, {state_of_w_, {2, 3}, 9}, {state_of_b_, {2}, 20}});
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_EQ(source->world_size(), 3);
  EXPECT_THAT(source->files(), SizeIs(3));
  EXPECT_EQ(Elements(*source, b_), "[2] 7 8");
  EXPECT_EQ(Elements(*source, state_of_w_), "[2, 3] 9 10 11 12 13 14");
  EXPECT_EQ(Elements(*source, state_of_b_), "[2] 20 21");
}

// No state has two dimensions, so only the sizes of the parameters tell copies from shards.
TEST_F(RankFilesTest, CopiesOfStateOfOneDimensionAreNotConcatenated) {
  for (const char* name : {"a0.bin", "a1.bin"}) Save(name, {{b_, {4}, 7}, {state_of_b_, {4}, 20}});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_EQ(Elements(*source, state_of_b_), "[4] 20 21 22 23");
}

TEST_F(RankFilesTest, ShardsThatAreEqualInEveryFileAreStillShards) {
  for (const char* name : {"a0.pt", "a1.pt"}) Save(name, {{b_, {4}, 7}, {state_of_b_, {2}, 20}});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_EQ(Elements(*source, state_of_b_), "[4] 20 21 20 21");
}

TEST_F(RankFilesTest, ShardsOfAParametersSizeGetItsShape) {
  Save("a0.pt", {{w_, {2, 3}, 1}, {state_of_w_, {4}, 10}});
  Save("a1.pt", {{w_, {2, 3}, 1}, {state_of_w_, {2}, 14}});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_EQ(Elements(*source, state_of_w_), "[2, 3] 10 11 12 13 14 15");
}

TEST_F(RankFilesTest, ShardsOfAnotherSizeThanTheirParameterAreRefused) {
  Save("a0.pt", {{w_, {2, 3}, 1}, {state_of_w_, {4}, 10}});
  Save("a1.pt", {{w_, {2, 3}, 1}, {state_of_w_, {3}, 14}});
  EXPECT_THAT(OpenTorchSource(directory_),
              StatusIs(kInvalid, HasSubstr("\"optim/state/w/exp_avg\" has 7 elements in all files together, but its "
                                           "parameter has 6")));
}

TEST_F(RankFilesTest, ShardsWithoutASizeToCompareWithAreRefused) {
  Save("a0.pt", {{state_of_b_, {2}, 10}});
  Save("a1.pt", {{state_of_b_, {2}, 14}});
  EXPECT_THAT(OpenTorchSource(directory_), StatusIs(kInvalid, HasSubstr("TensorSourceOptions::flat_layout")));
}

TEST_F(RankFilesTest, PartsOfAModelAreRefusedByTheNameOfATensor) {
  Save("consolidated.00.pth", {{w_, {4, 2}, 0}, {b_, {4}, 1}});
  Save("consolidated.01.pth", {{w_, {4, 2}, 8}, {b_, {4}, 1}});
  EXPECT_THAT(OpenTorchSource(directory_),
              StatusIs(kInvalid, AllOf(HasSubstr(directory_),
                                       HasSubstr("\"w\" (float32 [4, 2]) has other values in "
                                                 "consolidated.01.pth than in "
                                                 "consolidated.00.pth"),
                                       HasSubstr("nothing in them says how they are joined"))));
}

TEST_F(RankFilesTest, PartsOfOtherShapesOrDtypesAreRefused) {
  Save("a0.pt", {{w_, {4, 2}, 0}, {b_, {4}, 1}});
  Save("a1.pt", {{w_, {3, 2}, 0}, {b_, {4}, 1}});
  EXPECT_THAT(OpenTorchSource(directory_),
              StatusIs(kInvalid, HasSubstr("\"w\" is float32 [4, 2] in a0.pt and float32 [3, 2] in a1.pt")));
}

TEST_F(RankFilesTest, FilesWithOtherLayersAreRefused) {
  Save("stage0.pt", {{StateKey::Model("layers.0.w"), {2}, 0}, {b_, {4}, 1}});
  Save("stage1.pt", {{StateKey::Model("layers.1.w"), {2}, 0}, {b_, {4}, 1}});
  EXPECT_THAT(OpenTorchSource(directory_),
              StatusIs(kInvalid, HasSubstr("\"layers.1.w\" is in stage1.pt and not in stage0.pt")));
}

TEST_F(RankFilesTest, AnOptimizerOfWhichEachFileHasAPartIsRefused) {
  Save("a0.pt", {{w_, {2, 2}, 1}, {state_of_w_, {2, 2}, 10}});
  Save("a1.pt", {{w_, {2, 2}, 1}, {state_of_w_, {2, 2}, 11}});
  EXPECT_THAT(OpenTorchSource(directory_), StatusIs(kInvalid, HasSubstr("\"optim.state.w.exp_avg\"")));
}

// As ZeroRedundancyOptimizer's state is saved.
TEST_F(RankFilesTest, TheModelIsReadIfOnlyTheOptimizersDiffer) {
  Save("a0.pt", {{w_, {2, 2}, 1}, {b_, {2}, 1}, {state_of_w_, {2, 2}, 10}});
  Save("a1.pt", {{w_, {2, 2}, 1}, {b_, {2}, 1}, {state_of_b_, {2}, 11}});
  EXPECT_THAT(OpenTorchSource(directory_), StatusIs(kInvalid, HasSubstr("\"optim.state.b\" is in a1.pt")));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_, {.model_only = true}));
  EXPECT_EQ(Elements(*source, w_), "[2, 2] 1 2 3 4");
  EXPECT_THAT(source->contents().entries(), SizeIs(2));
}

TEST_F(RankFilesTest, ValuesAndGeneratorsOfEachRankAreKept) {
  const StateKey rng = StateKey::Extra("rng_state");
  Save("a0.pt", {{b_, {4}, 7}, {rng, {5}, 1, DType::kUInt8}}, {{"local_rank", "0"}, {"loss", "0.5"}});
  Save("a1.pt", {{b_, {4}, 7}, {rng, {5}, 2, DType::kUInt8}}, {{"local_rank", "1"}, {"loss", "0.5"}});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_EQ(*ReadWhole(*source, StateKey::Extra("rng_state.rank_1")), "\2\3\4\5\6");
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("local_rank")), R"({"rank_0":0,"rank_1":1})");
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("loss")), "0.5");
}

TEST_F(RankFilesTest, FilesOfTwoEpochsAreNotOneCheckpoint) {
  Save("model0.pt", {{b_, {4}, 7}}, {{"epoch", "3"}});
  Save("model1.pt", {{b_, {4}, 7}}, {{"epoch", "4"}});
  EXPECT_THAT(OpenTorchSource(directory_), StatusIs(kInvalid, HasSubstr("\"epoch\" is 3 in model0.pt and 4 in "
                                                                        "model1.pt")));
}

// The bytes of the second copy are never read for values, only for their CRC.
TEST_F(RankFilesTest, ADamagedCopyIsFound) {
  for (const char* name : {"a0.pt", "a1.pt"}) Save(name, {{b_, {1000}, 7}});
  const std::string damaged = directory_ + "/a1.pt";
  std::string bytes = ReadFile(damaged);
  const float element = 500;
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&element), 4));
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  WriteAll(damaged, bytes);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(directory_));
  EXPECT_THAT(VerifyRest(*source), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a1.pt")));
}

// rank0_only: the other ranks have an empty dict, or None.
TEST(RankTreeTest, WhatOnlyOneRankHasIsKept) {
  TorchNode model;
  model.Add("w", TorchNode::Tensor(0));
  TorchNode whole;
  whole.Add("model", model);
  TorchNode empty;
  empty.Add("model", TorchNode::Value(PythonJson::object()));
  TorchNode none;
  none.Add("model", TorchNode::Value(PythonJson()));
  const std::vector<TorchRankFile> files = {
      {"a0", &empty, {}}, {"a1", &whole, {{DType::kFloat32, {2}}}}, {"a2", &none, {}}};
  ASSERT_OK_AND_ASSIGN(const RankTree tree, MergeRankTrees(files, RankState::kCopies, nullptr));
  ASSERT_NE(tree.root.Find("model")->Find("w"), nullptr);
  ASSERT_THAT(tree.tensors, SizeIs(1));
  EXPECT_EQ(tree.tensors[0][0].rank, 1);
}

// 1 and 1.0, 0.0 and -0.0 are equal in Python and in JSON.
TEST(RankTreeTest, EqualValuesOfOtherTypesOrSignsAreKeptByRank) {
  for (const auto& [a, b] : std::vector<std::pair<PythonJson, PythonJson>>{{1, 1.0}, {0.0, -0.0}}) {
    TorchNode first;
    first.Add("loss", TorchNode::Value(a));
    TorchNode second;
    second.Add("loss", TorchNode::Value(b));
    ASSERT_OK_AND_ASSIGN(const RankTree tree,
                         MergeRankTrees({{"a0", &first, {}}, {"a1", &second, {}}}, RankState::kCopies, nullptr));
    ASSERT_OK_AND_ASSIGN(const PythonJson merged, tree.root.ToJson());
    EXPECT_EQ(merged.dump(), PythonJson({{"loss", {{"rank_0", a}, {"rank_1", b}}}}).dump());
  }
}

}  // namespace
}  // namespace fsdp
