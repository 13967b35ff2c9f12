// SPDX-License-Identifier: Apache-2.0
//
// RankFiles: a directory in which each rank of an FSDP1 run saved its own optimizer.state_dict(): optim_rank0.pt,
// optim_rank1.pt, ... A flat parameter's state is one-dimensional, and its shards in the order of the ranks form the
// whole. Everything else must be equal in all files. Pure except RankFilesIn.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// The names of the torch files (.pt, .pth, .bin) in `directory`, by rank, if there are at least two and their names
// differ only in one number, which counts from 0 without a gap; otherwise empty, because a missing rank must not go
// unnoticed.
std::vector<std::string> RankFilesIn(const std::string& directory);

// The trees of all ranks, merged.
struct RankTree {
  // Tensor `tensor` of the tree of rank `rank`.
  struct Part {
    int rank = 0;
    int tensor = 0;
  };
  TorchNode root;
  // By TorchNode::tensor() of `root`. Several parts are one-dimensional shards, in the order of the ranks; a single
  // part is a tensor that is equal on all ranks.
  std::vector<std::vector<Part>> tensors;
};

// Merges the trees of all ranks; `types` has the types of each rank's tensors. Compares dtypes and shapes, but not
// elements and values: the first rank that has them provides them. kInvalidArgument names a tensor or value that
// differs between ranks and is not a shard.
absl::StatusOr<RankTree> MergeRankTrees(const std::vector<const TorchNode*>& roots,
                                        const std::vector<std::vector<TorchLeafType>>& types);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_
