// SPDX-License-Identifier: Apache-2.0
//
// ItemPlan: which files of a directory hold which item of which rank. metadata.pkl says so for the items that it has;
// the others, and all items of a directory without it, have files named ITEM_RANK.pt (torch.save), ITEM_RANK.json,
// ITEM_RANK.safetensors or, with any other ending, bytes.
//
// A name by itself says nothing: a directory without metadata.pkl counts only if its torch files hold DTensors, or if
// one item is "model" and there are other items. The files of one torch.save by each rank of FSDP2 (rank0.pt,
// rank1.pt), which hold DTensors, are one item that is the whole checkpoint.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_PLAN_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/items_metadata.h"

namespace fsdp {

struct PlannedItem {
  std::string name;
  std::vector<std::optional<ItemLayout>> files;  // by rank; nullopt: the rank wrote none
  int metadata = -1;                             // in ItemPlan::metadata.items; -1: it says nothing about the item
};

struct ItemPlan {
  ItemsMetadata metadata;  // empty without metadata.pkl
  bool has_metadata = false;
  bool has_dtensors = false;  // in torch files; unknown, and true, with metadata.pkl
  std::vector<PlannedItem> items;
  int world_size = 1;
  bool is_one_dict = false;  // the tree of the only item is the whole checkpoint
};

// True if `directory` is such a checkpoint, by names and first bytes. The error of a directory that cannot be listed.
absl::StatusOr<bool> IsItemDirectory(const std::string& directory);

// kDataLoss for a rank whose file is missing, and for a metadata.pkl that cannot be read (items_metadata.h);
// kInvalidArgument for a directory that is unfinished (tmp_NAME), and for one whose parts are where only metadata.pkl
// would say what they are.
absl::StatusOr<ItemPlan> PlanItems(const std::string& directory);

// The checkpoint whose metadata.pkl names `file` as the part of one of several ranks: the directory of the file or one
// up to three levels above. Empty for any other file.
std::string ItemDirectoryOf(const std::string& file);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_PLAN_H_
