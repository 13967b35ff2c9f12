// SPDX-License-Identifier: Apache-2.0
//
// MergeRankTrees: the files in which each rank of a run saved its state dict, as one tree. Two kinds of run save so:
//
//   copies   every rank has everything (DDP): what several files hold is equal in every byte
//   shards   the optimizer's state of FSDP1, whose one-dimensional tensors are shards of flat parameters: in the order
//            of the ranks they form the whole. Everything else is a copy
//
// Files of any other kind, such as the parts of tensor or pipeline parallelism, do not say how they are joined and are
// refused by the name of a tensor. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

struct TorchRankFile {
  std::string name;                  // for messages
  const TorchNode* root = nullptr;   // of its tree
  std::vector<TorchLeafType> types;  // of the tensors of its tree
};

// Tensor `tensor` of the tree of rank `rank`.
struct RankPart {
  int rank = 0;
  int tensor = 0;
};

// True if two tensors of equal dtype and shape have equal elements.
using RankPartsEqual = std::function<absl::StatusOr<bool>(const RankPart& a, const RankPart& b)>;

// The meaning of the optimizer's state in the files.
enum class RankState {
  kCopies,
  kShards,
  kLeftOut,  // only the model is wanted: an optimizer next to a model becomes one without state
};

// True if the files have an optimizer's state, and no tensor in it has two dimensions or more: only then can it be
// shards.
bool MayHoldShards(const std::vector<TorchRankFile>& files);

// The trees of all ranks, merged.
struct RankTree {
  TorchNode root;
  // By TorchNode::tensor() of `root`. Several parts are one-dimensional shards, in the order of the ranks; a single
  // part is a tensor that is equal in all files that have it, or that only one file has.
  std::vector<std::vector<RankPart>> tensors;
};

// Merges the trees of all ranks, of which there is at least one. Generator states and plain values outside of the
// optimizer may differ: such a member becomes a dict with the value of each rank, {"rank_0": ..., "rank_1": ...}.
// kInvalidArgument names anything else that differs, with two files, and tensors of which each file has others. Errors
// of `equal`. kShards requires MayHoldShards.
absl::StatusOr<RankTree> MergeRankTrees(const std::vector<TorchRankFile>& files, RankState state,
                                        const RankPartsEqual& equal);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_RANK_FILES_H_
