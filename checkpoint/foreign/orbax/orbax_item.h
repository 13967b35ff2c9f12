// SPDX-License-Identifier: Apache-2.0
//
// OrbaxItem: one tree of an Orbax checkpoint, in a directory: its arrays and texts, by name. Opening reads _METADATA,
// the keys and the metadata of each array, and compares them: every leaf must be stored, in the form that _METADATA
// states.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEM_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/orbax/key_values.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"

namespace fsdp {

class OrbaxItem {
 public:
  // Opens the item in `directory`. Its arrays get the numbers from `first_number` on, and share `memory`, which must
  // outlive it. Errors name the file or the array.
  static absl::StatusOr<OrbaxItem> Open(const std::string& directory, int64_t first_number, ChunkMemory& memory);

  const std::string& directory() const { return directory_; }
  const std::vector<ZarrArray>& arrays() const { return arrays_; }

  // The number after the last number of its arrays, which are not all in arrays().
  int64_t end_number() const { return end_number_; }

  // Texts of the tree, by the name of the leaf.
  const std::vector<std::pair<std::string, std::string>>& texts() const { return texts_; }

  // Values that cannot be read, and files that are not in the tree, for messages.
  const std::vector<std::string>& unreadable() const { return unreadable_; }
  const std::vector<std::string>& left_out() const { return left_out_; }

  // Sentences about chunks that are not stored.
  const std::vector<std::string>& notes() const { return notes_; }

  // The files that were read, and those with values: paths with the directory.
  std::vector<std::string> files() const;

 private:
  explicit OrbaxItem(std::string directory) : directory_(std::move(directory)) {}

  absl::Status ReadTree();
  absl::Status OpenValues();
  absl::Status OpenArrays(int64_t first_number, ChunkMemory& memory);
  absl::Status CheckChunks(ZarrArray& array);
  absl::Status CheckLeaves();
  absl::Status ReadTexts();

  std::string directory_;
  std::optional<OrbaxTree> tree_;  // nullopt: an OCDBT database or folders of zarr without Orbax
  std::unique_ptr<KeyValues> values_;
  std::vector<ZarrArray> arrays_;  // in the order of their names
  int64_t end_number_ = 0;
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<std::string> unreadable_, left_out_, notes_;
  std::vector<std::string> json_files_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_ITEM_H_
