// SPDX-License-Identifier: Apache-2.0
//
// JoinItems: the files of all ranks as one tree of whole tensors. Rank after rank, the tree of each item is merged into
// the tree of the ranks before:
//
//   parts     of a DTensor, or of the records of metadata.pkl: each takes its place; all must be there in the end
//   copies    of a part or of a plain tensor: the first rank's is read, and a note says which differ, as far as CRCs,
//   or
//             bytes if they are few, tell. A generator's state, and any value outside of an optimizer, may be each
//             rank's own, and becomes {"rank_0": ..., "rank_1": ...}
//   one of    what only some ranks have is the checkpoint's too: pipeline stages
//
// Facts that are stated twice are compared: a file's DTensors with the records of metadata.pkl, and the rank in a file
// with the name of the file.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_JOINED_ITEMS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_JOINED_ITEMS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_file.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// Tensor `tensor` of file `file`; no part if file is -1.
struct LocalPart {
  int32_t file = -1;
  int32_t tensor = -1;
};

struct JoinedItem {
  DType dtype = DType::kFloat32;
  Shape shape;
  int identity = -1;  // equal for two names of one tensor
  TorchWrapper wrapper = {};

  // Null: `parts` is one whole tensor, unless there are shards. Otherwise the part of the rank at each place of the
  // mesh, of copies only the first.
  std::shared_ptr<const DTensor> dtensor;
  std::vector<LocalPart> parts;

  struct Shard {
    Box box;
    std::vector<int64_t> local_start;
    LocalPart part;
  };
  bool has_shards = false;
  std::vector<Shard> shards;  // of default_tensor_v1
};

struct JoinedItems {
  TorchNode root;  // {ITEM: its tree}, or the tree of the only item
  std::vector<JoinedItem> tensors;
  std::vector<std::unique_ptr<ItemFile>> files;
  bool has_stages = false;  // not every rank has all names of a model: the ids of optimizers are of one stage each
  std::vector<std::string> left_out;
  std::vector<std::string> notes;
};

// Opens all files of `plan`, one after the other. kDataLoss names file and tensor if they contradict each other or
// something is missing; errors of opening the files.
absl::StatusOr<JoinedItems> JoinItems(const std::string& directory, const ItemPlan& plan,
                                      const TensorSourceOptions& options, FilePool& pool);

// Elements `interval` of a tensor, row-major. Thread-safe. Errors of the files.
absl::Status ReadJoinedItem(const JoinedItems& items, int tensor, const Interval& interval, FilePool& pool,
                            std::byte* out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_JOINED_ITEMS_H_
