// SPDX-License-Identifier: Apache-2.0
//
// RankFiles: a directory in which each rank of an FSDP1 run saved its own optimizer.state_dict():
// optim_rank0.pt, optim_rank1.pt, ... Shards of flat parameters are one-dimensional; one after the other, in the order
// of the ranks, they are the whole. Everything else is the same in all files. Pure but for RankFilesIn.
#ifndef FSDP_CHECKPOINT_TORCH_PT_RANK_FILES_H_
#define FSDP_CHECKPOINT_TORCH_PT_RANK_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/state/torch_tree.h"

namespace fsdp {

// The names of the torch files (.pt, .pth, .bin) in `directory`, by rank, when there are at least two, and they differ
// in one number only, which counts from 0; otherwise empty.
std::vector<std::string> RankFilesIn(const std::string& directory);

struct RankTree {
  struct Part {
    int rank = 0;
    int tensor = 0;  // in the rank's file
  };
  TorchNode root;
  std::vector<std::vector<Part>> tensors;  // by the index of their node; several are shards, one after the other
};

// The trees of all ranks as one; `types` are those of each rank's tensors. kInvalidArgument names what differs between
// the ranks and is no shard.
absl::StatusOr<RankTree> MergeRankTrees(const std::vector<const TorchNode*>& roots,
                                        const std::vector<std::vector<TorchLeafType>>& types);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_RANK_FILES_H_
