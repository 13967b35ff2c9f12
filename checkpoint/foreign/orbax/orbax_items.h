// SPDX-License-Identifier: Apache-2.0
//
// OrbaxItems: everything that a checkpoint directory holds: one tree, or, in a step, a folder for each item. An item is
// a tree (orbax_item.h) or one file of JSON; other items are left out, by name. _CHECKPOINT_METADATA lists the items,
// and none of those may be missing.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEMS_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEMS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_item.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"

namespace fsdp {

class OrbaxItems {
 public:
  struct Tree {
    std::string name;  // of the item; empty for a directory that is one
    OrbaxItem item;
  };

  OrbaxItems() = default;

  // Opens the item or the step in `directory`. `memory` must outlive the result. kDataLoss if nothing in it is a tree.
  static absl::StatusOr<OrbaxItems> Open(const std::string& directory, ChunkMemory& memory);

  const std::vector<Tree>& trees() const { return trees_; }

  // The items of JSON, by name: their texts.
  const std::vector<std::pair<std::string, std::string>>& texts() const { return texts_; }

  const std::vector<std::string>& left_out() const { return left_out_; }

  // The files of all items.
  std::vector<std::string> files() const;

 private:
  absl::Status AddTree(const std::string& name, const std::string& directory, ChunkMemory& memory);
  absl::Status AddAll(const std::string& directory, ChunkMemory& memory);
  absl::Status AddOther(const std::string& name, const std::string& directory, const std::string& handler);
  absl::StatusOr<std::map<std::string, std::string>> ReadHandlers(const std::string& directory);

  std::vector<Tree> trees_;
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<std::string> left_out_;
  std::vector<std::string> files_;  // besides the files of the trees
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEMS_H_
