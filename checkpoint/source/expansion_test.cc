// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/expansion.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Tensors of bytes that are views of storages. No test reads their values.
class Views final : public TensorSource, public TensorViews {
 public:
  void Add(const std::string& name, int64_t numel, const TensorStorage& storage) {
    contents_.Set(StateKey::Model(name), ShardedTensor{DType::kUInt8, Shape({numel}), {}});
    storages_[StateKey::Model(name)] = storage;
  }

  const FormatTraits& traits() const override { return traits_; }
  const TensorViews* views() const override { return this; }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {}; }
  absl::Status Read(const StateKey&, const Interval&, void*) const override { return absl::UnimplementedError("no"); }
  std::optional<TensorStorage> Storage(const StateKey& key) const override { return storages_.at(key); }
  absl::Status ReadDistinct(const StateKey&, const Interval&, void*) const override {
    return absl::UnimplementedError("no");
  }

 private:
  const FormatTraits traits_ = {.name = "views"};
  StateDict contents_;
  std::map<StateKey, TensorStorage> storages_;
  const std::map<std::string, std::string> metadata_;
};

TensorStorage NewStorage(int64_t id, int64_t nbytes, int64_t view, int64_t distinct) {
  return {.id = id, .nbytes = nbytes, .view = view, .touched_bytes = nbytes, .distinct_numel = distinct};
}

// The extents of all tensors, in their order.
std::vector<ReadExtent> ExtentsOf(const Views& views) {
  ReadBound bound(views);
  std::vector<ReadExtent> extents;
  for (const auto& [key, value] : views.contents().entries()) {
    extents.push_back(bound.Of(key, std::get<ShardedTensor>(value)));
  }
  return extents;
}

TEST(ReadBoundTest, EveryElementIsReadOfWhatExpandsModerately) {
  Views views;
  views.Add("expanded", 100 * kMiB, NewStorage(0, 10 * kMiB, 0, kMiB));
  for (const ReadExtent& extent : ExtentsOf(views)) {
    EXPECT_FALSE(extent.is_distinct);
    EXPECT_EQ(extent.numel, 100 * kMiB);
    EXPECT_EQ(extent.left_out, 0);
  }
}

TEST(ReadBoundTest, BeyondThatAnExpandedTensorIsReadOnceAndTheOthersWholly) {
  Views views;
  views.Add("a_expanded", 1000 * kMiB, NewStorage(0, 10 * kMiB, 0, 10 * kMiB));
  views.Add("b_same_storage", 10 * kMiB, NewStorage(0, 10 * kMiB, 1, 10 * kMiB));
  views.Add("c_alone", 10 * kMiB, NewStorage(1, 10 * kMiB, 0, 10 * kMiB));
  const std::vector<ReadExtent> extents = ExtentsOf(views);
  EXPECT_TRUE(extents[0].is_distinct);
  EXPECT_FALSE(extents[1].is_distinct);
  for (const ReadExtent& extent : extents) {
    EXPECT_EQ(extent.numel, 10 * kMiB);
    EXPECT_EQ(extent.left_out, 0);
  }
}

// Equal views in a model are one tensor with aliases; in optimizer states each has its own entry.
TEST(ReadBoundTest, OfEqualViewsTheFirstIsRead) {
  Views views;
  for (int i = 0; i < 100; ++i) views.Add("v" + std::to_string(i), 10 * kMiB, NewStorage(0, 10 * kMiB, 0, 10 * kMiB));
  const std::vector<ReadExtent> extents = ExtentsOf(views);
  EXPECT_EQ(extents[0].numel, 10 * kMiB);
  for (size_t i = 1; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].numel, 0);
    EXPECT_EQ(extents[i].same_as, 0);
  }
}

// 4 x 10 MiB for the storage plus 64 MiB for all allow 10 views and 4 MiB.
TEST(ReadBoundTest, DifferentViewsOfOneStorageAreCutOffAndTheRestIsCounted) {
  Views views;
  for (int i = 0; i < 100; ++i) views.Add("v" + std::to_string(i), 10 * kMiB, NewStorage(0, 10 * kMiB, i, 10 * kMiB));
  views.Add("z_alone", 10 * kMiB, NewStorage(1, 10 * kMiB, 0, 10 * kMiB));
  const std::vector<ReadExtent> extents = ExtentsOf(views);
  int64_t read = 0;
  for (const ReadExtent& extent : extents) {
    EXPECT_EQ(extent.numel + extent.left_out, 10 * kMiB);
    read += extent.numel;
  }
  EXPECT_EQ(read, (104 + 10) * kMiB);
  EXPECT_EQ(extents.back().left_out, 0);
}

// An expanded tensor that ReadDistinct cannot read, such as a part of a flat parameter.
TEST(ReadBoundTest, WhatCannotBeReadOnceIsCutOff) {
  Views views;
  views.Add("part", 1000 * kMiB, NewStorage(0, 10 * kMiB, 0, 0));
  const std::vector<ReadExtent> extents = ExtentsOf(views);
  EXPECT_FALSE(extents[0].is_distinct);
  EXPECT_EQ(extents[0].numel, 104 * kMiB);
  EXPECT_EQ(extents[0].left_out, 896 * kMiB);
}

TEST(ExpansionTest, TheTensorThatIsNamedIsOneThatExpandsOrSharesItsStorage) {
  Views views;
  views.Add("a_alone", kMiB, NewStorage(0, kMiB, 0, kMiB));
  views.Add("b_shares", kMiB, NewStorage(1, kMiB, 0, kMiB));
  views.Add("c_shares", kMiB, NewStorage(1, kMiB, 1, kMiB));
  Expansion expansion = ExpansionOf(views);
  EXPECT_TRUE(expansion.expands());
  EXPECT_FALSE(expansion.has_expanded_tensor());
  EXPECT_EQ(expansion.worst, StateKey::Model("b_shares"));
  views.Add("d_expanded", 2 * kMiB, NewStorage(2, kMiB, 0, kMiB));
  expansion = ExpansionOf(views);
  EXPECT_TRUE(expansion.has_expanded_tensor());
  EXPECT_EQ(expansion.worst, StateKey::Model("d_expanded"));
}

}  // namespace
}  // namespace fsdp
