// SPDX-License-Identifier: Apache-2.0
//
// ItemsMetadata: metadata.pkl of torch_checkpointing: for each item (model, optimizer) how its tensors are divided, and
// in which file each rank put it. A pickle of plain values without globals:
//
//   {"metadata": {ITEM: {"nested_path_to_metadata": {PATH: [{"sharding_metadata": {"type": T, "data": D},
//                                                            "ranks": (0, 1)}, ...]},
//                        "rank_to_layout_info": {0: None | {"file_path": ..., "serialization_format": {"type": F}}}}},
//    "world_size": 2, "version": "2.0"}
//
//   PATH                        '["state",10,"exp_avg"]': the keys on the way to the tensor
//   DTensorShardingMetadata     a mesh and placements (dtensor.h); the ranks of the mesh share one record
//   default_tensor_v1           the boxes of the whole that one rank has, and where they are in its local tensor
//
// Several records of one path are copies. Version 1.0 has the item as the first element of PATH, and the layouts of all
// items by rank. Pure: bytes in, values out, every number checked.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEMS_METADATA_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEMS_METADATA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"
#include "fsdp/tensor/box.h"

namespace fsdp {

enum class ItemFormat : uint8_t { kTorch, kSafetensors, kJson, kRaw };

struct ItemLayout {
  std::string file;  // relative to the directory, and inside of it
  ItemFormat format = ItemFormat::kTorch;
};

// The way to a tensor in its item.
struct ItemPathElement {
  std::string name;
  bool is_integer = false;
};
using ItemPath = std::vector<ItemPathElement>;

// A text that only this path has, from the text of the path above it.
std::string ItemPathKey(const std::string& above, std::string_view name, bool is_integer);

// Parts of a tensor in the local tensor of one rank.
struct DefaultShards {
  DType dtype = DType::kFloat32;
  Shape shape;  // of the whole tensor
  struct Shard {
    Box box;                           // in the whole
    std::vector<int64_t> local_start;  // in the local tensor; the sizes are the box's
  };
  std::vector<Shard> shards;
};

struct ItemTensor {
  ItemPath path;
  // A division of the tensor over some ranks, in one of the two forms.
  struct Record {
    std::shared_ptr<const DTensor> dtensor;       // whose mesh has no place
    std::shared_ptr<const DefaultShards> shards;  // null if `dtensor` is not
    std::vector<int32_t> ranks;                   // rising; empty: the ranks of the mesh of `dtensor`

    int64_t rank_count() const;
  };
  std::vector<Record> records;
};

struct ItemMetadata {
  std::string name;
  std::vector<ItemTensor> tensors;
  absl::flat_hash_map<std::string, size_t> by_path;  // ItemPathKey of each, in `tensors`
  std::vector<std::optional<ItemLayout>> layouts;    // by rank; nullopt: NAME_RANK.pt

  // The file of `rank`, with the default filled in.
  ItemLayout LayoutOf(int rank) const;
};

struct ItemsMetadata {
  std::vector<ItemMetadata> items;
  int world_size = 0;
};

inline constexpr char kItemsMetadataName[] = "metadata.pkl";
inline constexpr int kMaxItemRanks = 1 << 17;

// True if `head`, the first bytes of a file, are of such a pickle.
bool IsItemsMetadata(std::string_view head);

// kDataLoss for bytes that are no such pickle, with the item and the path; kInvalidArgument for a version, a type of
// record or a format of files that is not known, and for a pickle that wants anything from Python;
// kResourceExhausted for more ranks or records than a checkpoint can have.
absl::StatusOr<ItemsMetadata> ParseItemsMetadata(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEMS_METADATA_H_
