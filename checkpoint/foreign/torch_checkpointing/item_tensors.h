// SPDX-License-Identifier: Apache-2.0
//
// ItemTensors: the tensors of one item, joined from the files of all ranks, one file after the other. For each tensor
// of a file it finds out what it is of the checkpoint's: what the file says (a DTensor), what metadata.pkl says, which
// must agree, or, if neither says anything, a plain tensor. The first file that has a name makes the JoinedItem; the
// others add their parts to it or are compared with it. item_joiner.h walks the trees.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_TENSORS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_file.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_meshes.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/joined_items.h"

namespace fsdp {

// A place in the tree of an item.
struct ItemPlace {
  std::string name;  // for messages: "optimizer.state.0.exp_avg"
  std::string key;   // ItemPathKey
  int depth = 0;
  bool is_in_optimizer = false;

  ItemPlace Inside(const std::string& child, bool is_integer) const;
};

// The bytes that are compared when a checkpoint is opened: of one tensor, and of all together.
class CopyBudget {
 public:
  int64_t max_bytes() const { return std::min(kMaxEach, left_); }
  void Take(int64_t nbytes) { left_ -= std::min(nbytes, left_); }

 private:
  static constexpr int64_t kMaxEach = int64_t{1} << 20;
  int64_t left_ = int64_t{64} << 20;
};

// For one item. All that it refers to must outlive it.
class ItemTensors {
 public:
  ItemTensors(const PlannedItem& item, const ItemPlan& plan, FilePool& pool, ItemMeshes& meshes, CopyBudget& budget,
              JoinedItems& items);

  // Add and Merge are of tensors of this file, `number` in JoinedItems::files, from now on.
  void StartFile(int rank, ItemFile& file, int32_t number);

  // The number in JoinedItems::tensors of a new tensor.
  absl::StatusOr<int> Add(const ItemPlace& place, int tensor);

  // Adds the part of the file to tensor `number`. False if it is the state of a generator that is another on this rank,
  // and must be a tensor of its own.
  absl::StatusOr<bool> Merge(const ItemPlace& place, int tensor, int number);

  // The rank whose file has the first part of tensor `number`.
  int FirstRankOf(int number) const;

  // After the last file: kDataLoss for a tensor without all of its parts, and for one of metadata.pkl that is in no
  // file. Adds notes about copies to JoinedItems.
  absl::Status Finish();

 private:
  // The part of the tensor of the checkpoint that a local tensor is.
  struct Division {
    DType dtype = DType::kFloat32;
    Shape shape;
    std::shared_ptr<const DTensor> dtensor;  // null for a whole tensor, and for shards
    int64_t place = -1;                      // of the rank in the mesh; -1: it has no part
    std::shared_ptr<const DefaultShards> shards;
  };

  absl::StatusOr<Division> DivisionOf(const ItemPlace& place, int tensor);
  absl::StatusOr<Division> DivisionOfDTensor(const ItemPlace& place, const DTensor& own, int tensor);
  absl::StatusOr<const ItemTensor::Record*> RecordOf(const ItemPlace& place, const DTensor* own);
  int IdentityOf(int number, int tensor);
  absl::Status MergePart(const ItemPlace& place, const Division& division, const LocalPart& part, JoinedItem& joined);
  void AddShards(const ItemPlace& place, const DefaultShards& shards, int tensor, int number);
  absl::StatusOr<std::optional<bool>> AreEqual(const LocalPart& a, const LocalPart& b);
  absl::Status Compare(const ItemPlace& place, const LocalPart& known, const LocalPart& part);
  absl::Status CheckWhole(int number) const;
  absl::Status CheckSeen(const ItemTensor& tensor, int64_t seen) const;

  absl::Status Broken(const ItemPlace& place, const std::string& what) const;
  absl::Status Unlike(const ItemPlace& place, const Shape& local, const Shape& whole, const std::string& how) const;

  // How many, and the first, for a note.
  struct Counted {
    int64_t count = 0;
    std::string first;
    void Count(const std::string& what);
    // "12 tensors, such as FIRST, WHAT"; empty for none.
    std::string ToString(const std::string& what) const;
  };

  using View = std::tuple<int64_t, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;
  using BoxKey = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

  const PlannedItem& item_;
  const ItemMetadata* const metadata_;  // null without
  const bool is_strict_;                // nothing says that the files belong together: copies must be equal
  FilePool& pool_;
  ItemMeshes& meshes_;
  CopyBudget& budget_;
  JoinedItems& items_;
  const size_t first_;  // in items_.tensors

  int rank_ = 0;  // of the file
  const ItemFile* file_ = nullptr;
  int32_t file_number_ = 0;
  std::map<View, int> views_;  // of the file: the first tensor of each view

  std::vector<std::string> names_;                          // of tensors, from first_ on
  std::vector<int64_t> seen_;                               // ranks, by tensor of the metadata
  absl::flat_hash_map<int, std::map<BoxKey, bool>> boxes_;  // by tensor: the boxes of its shards
  Counted uncompared_;
  Counted different_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_TENSORS_H_
