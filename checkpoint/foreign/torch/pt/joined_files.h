// SPDX-License-Identifier: Apache-2.0
//
// JoinedFiles: torch files as one tree. Three ways to save differ only in how several trees become one tree and their
// tensors one list:
//
//   a file            the tree of the file                          each tensor is one TensorRef
//   files + an index  one dict; every member is a tensor            each tensor is one TensorRef
//   a file of a rank  MergeRankTrees: members of all ranks          one TensorRef, or a shard of each rank in order
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_FILES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

inline constexpr char kTorchIndexName[] = "pytorch_model.bin.index.json";

struct JoinedFiles {
  TorchFiles files;
  TorchNode root;      // its tensors are numbers of `tensors`
  TensorList tensors;  // of `files`
  int ranks = 1;       // that saved a file each; 1 for the other ways to save
  int shards = 1;      // ranks whose shards make up a flat parameter: `ranks`, or 1 if their files are copies
};

// The torch files `names` of `directory`, opened in that order.
absl::StatusOr<TorchFiles> OpenTorchFiles(const std::string& directory, const std::vector<std::string>& names,
                                          const TensorSourceOptions& options);

absl::StatusOr<JoinedFiles> JoinOneFile(const std::string& path, const TensorSourceOptions& options);

// The files of kTorchIndexName in `directory`. Every tensor of the index must be in the file that the index names, and
// the files must not contain anything else: kDataLoss.
absl::StatusOr<JoinedFiles> JoinIndexedFiles(const std::string& directory, const TensorSourceOptions& options);

// `files` are of the ranks, in rank order; their trees stay. Errors as MergeRankTrees.
absl::StatusOr<JoinedFiles> JoinRankFiles(const TorchFiles& files, RankState state);

// For MayHoldShards.
std::vector<TorchRankFile> RankFilesOf(const TorchFiles& files);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_FILES_H_
