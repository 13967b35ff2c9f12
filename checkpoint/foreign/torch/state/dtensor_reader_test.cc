// SPDX-License-Identifier: Apache-2.0
//
// DTensors in the forms in which torch writes them, and in others. Files of the library are in
// checkpoint/foreign/torch_checkpointing.
#include "fsdp/checkpoint/foreign/torch/state/dtensor_reader.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

using Members = std::vector<std::pair<std::string, std::function<void(PickleWriter&)>>>;
using Sizes = std::vector<int64_t>;

// An object of `type` with that state.
void Push(PickleWriter& writer, const std::string& type, const Members& members) {
  writer.Global(type);
  writer.EmptyTuple();
  writer.NewObject();
  if (members.empty()) return;
  writer.EmptyDict();
  writer.Mark();
  for (const auto& [name, push] : members) {
    writer.String(name);
    push(writer);
  }
  writer.SetItems();
  writer.Build();
}

// The pickle of torch.save of a DTensor [4, 3] of two ranks, in rows, by rank 1.
struct Written {
  Sizes local = {2, 3};
  int rank = 1;
  int coordinate = 1;
  Sizes axis = {2, 1};  // size and stride
  Sizes ranks = {0, 1};
  std::string placement = "Shard";
  Sizes order = {0};
  bool is_old = false;  // the mesh of torch before 2.10

  static std::function<void(PickleWriter&)> Integers(Sizes values) {
    return [values](PickleWriter& writer) { writer.Integers(values); };
  }

  static void Tensor(PickleWriter& writer, const std::string& storage, const std::string& key, const Sizes& shape) {
    int64_t numel = 1;
    Sizes strides(shape.size());
    for (size_t d = shape.size(); d-- > 0; numel *= shape[d]) strides[d] = numel;
    writer.Global("torch._utils._rebuild_tensor_v2");
    writer.Mark();
    writer.Mark();
    writer.String("storage");
    writer.Global(storage);
    writer.String(key);
    writer.String("cpu");
    writer.Integer(numel);
    writer.Tuple();
    writer.PersistentId();
    writer.Integer(0);
    writer.Integers(shape);
    writer.Integers(strides);
    writer.Bool(false);
    writer.None();
    writer.Tuple();
    writer.Reduce();
  }

  void Mesh(PickleWriter& writer) const {
    const auto axes = [this](PickleWriter& to) {
      to.Mark();
      Push(to, "torch.distributed._mesh_layout._FlatLayout",
           {{"shape", Integers({axis[0]})}, {"stride", Integers({axis[1]})}});
      to.Tuple();
    };
    const auto layout = [&](PickleWriter& to) {
      Push(to, "torch.distributed._mesh_layout._MeshLayout", {{"axes", axes}});
    };
    const auto tensor = [this](PickleWriter& to) { Tensor(to, "torch.IntStorage", "mesh", {axis[0]}); };
    Members members = {{"_rank", [this](PickleWriter& to) { to.Integer(rank); }},
                       {"_coordinate_on_dim", Integers({coordinate})}};
    if (is_old) {
      members.insert(members.end(), {{"mesh", tensor}, {"_flatten_mesh_list", Integers(ranks)}});
    } else {
      members.insert(members.end(), {{"_layout", layout}, {"_flatten_rank_map", Integers(ranks)}});
    }
    Push(writer, "torch.distributed.device_mesh.DeviceMesh", members);
  }

  void Spec(PickleWriter& writer) const {
    const auto placements = [this](PickleWriter& to) {
      to.Mark();
      Push(to, absl::StrCat("torch.distributed.tensor.placement_types.", placement),
           {{"dim", [](PickleWriter& dim) { dim.Integer(0); }}});
      to.Tuple();
    };
    const auto shard_order = [this](PickleWriter& to) {
      to.Mark();
      to.Global("torch.distributed.tensor._dtensor_spec.ShardOrderEntry");
      to.Mark();
      to.Integer(0);
      to.Integers(order);
      to.Tuple();
      to.NewObject();
      to.Tuple();
    };
    Push(writer, "torch.distributed.tensor._dtensor_spec.DTensorSpec",
         {{"mesh", [this](PickleWriter& to) { Mesh(to); }}, {"placements", placements}, {"shard_order", shard_order}});
  }

  absl::StatusOr<TorchTree> Read() const {
    PickleWriter writer;
    writer.Global("torch._tensor._rebuild_from_type_v2");
    writer.Mark();
    writer.Global("torch._utils._rebuild_wrapper_subclass");
    writer.Global("torch.distributed.tensor.DTensor");
    writer.Mark();
    writer.Global("torch.distributed.tensor.DTensor");
    writer.Global("torch.float32");
    writer.Integers(Sizes{4, 3});
    writer.Integers(Sizes{3, 1});
    writer.Tuple();
    writer.Mark();
    writer.None();
    writer.EmptyDict();
    writer.Mark();
    writer.String("_local_tensor");
    Tensor(writer, "torch.FloatStorage", "0", local);
    writer.String("_spec");
    Spec(writer);
    writer.SetItems();
    writer.Tuple();
    writer.Tuple();
    writer.Reduce();
    return ParseTorchTree(std::move(writer).Finish());
  }
};

const DTensor& TensorOf(const TorchTree& tree) { return *tree.tensors.dtensor(tree.root.tensor()); }

TEST(DTensorReaderTest, TheMeshOfEitherFormIsRead) {
  for (const bool is_old : {false, true}) {
    Written written;
    written.is_old = is_old;
    ASSERT_OK_AND_ASSIGN(const TorchTree tree, written.Read());
    EXPECT_EQ(TensorOf(tree).shape, (Shape{4, 3}));
    EXPECT_THAT(TensorOf(tree).mesh->ranks, ElementsAre(0, 1));
    EXPECT_EQ(TensorOf(tree).mesh->place, 1);
    EXPECT_THAT(CheckHoldsNoShards(tree),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("the part [2, 3] of a tensor [4, 3], (Shard(0)) over the ranks [0, 1], that rank 1 "
                                   "has: put the files of all these ranks into one directory")));
  }
}

TEST(DTensorReaderTest, OfSeveralMeshesInTheListOfRanksItIsThatOfTheRank) {
  Written written;
  written.ranks = {0, 1, 2, 3};
  written.axis = {2, 2};
  written.rank = 3;
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, written.Read());
  EXPECT_THAT(TensorOf(tree).mesh->ranks, ElementsAre(1, 3));
}

TEST(DTensorReaderTest, ThatOfOneRankIsWhole) {
  Written written;
  written.local = {4, 3};
  written.axis = {1, 1};
  written.ranks = {0};
  written.rank = 0;
  written.coordinate = 0;
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, written.Read());
  EXPECT_OK(CheckHoldsNoShards(tree));
}

TEST(DTensorReaderTest, WhatIsNoPartIsRefused) {
  const auto expect = [](const std::function<void(Written&)>& change, StatusCode code, const std::string& what) {
    Written written;
    change(written);
    EXPECT_THAT(written.Read(), StatusIs(code, HasSubstr(what))) << what;
  };
  expect([](Written& w) { w.local = {3, 3}; }, StatusCode::kDataLoss, "float32 [3, 3] is not its rank's part");
  const auto expect_object = [](const std::function<void(Written&)>& change, const std::string& what) {
    Written written;
    change(written);
    ASSERT_OK_AND_ASSIGN(TorchTree tree, written.Read());
    const std::vector<TorchObject> objects = TakeObjects(tree.root);
    ASSERT_EQ(objects.size(), 1) << what;
    EXPECT_TRUE(objects[0].is_tensor);
    EXPECT_THAT(objects[0].ToString(), HasSubstr(what));
  };
  expect_object([](Written& w) { w.placement = "Partial"; }, "a sum over ranks");
  expect_object([](Written& w) { w.order = {1, 0}; }, "shard_order");
  expect([](Written& w) { w.rank = 7; }, StatusCode::kDataLoss, "the rank 7 is not in its mesh");
  expect([](Written& w) { w.coordinate = 2; }, StatusCode::kDataLoss, "a coordinate outside of its mesh");
  expect([](Written& w) { w.axis = {4, 1}; }, StatusCode::kDataLoss, "beyond its list of ranks");
  expect([](Written& w) { w.axis = {int64_t{1} << 20, 1}; }, StatusCode::kDataLoss, "beyond its list of ranks");
  expect([](Written& w) { w.ranks = {1, 1}; }, StatusCode::kDataLoss, "the rank 1 twice");
}

}  // namespace
}  // namespace fsdp
