// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/joined_files.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// Adds the members of a file's tree to the tree of all files; its tensors are numbered from `first`. Index and file
// must agree on every tensor, so that a single replaced file is noticed.
absl::Status AddMembers(const TorchFile& file, const HuggingFaceIndex& index, int first, TorchNode& root) {
  const std::string name = SplitPath(file.path()).name;
  for (const auto& [tensor, node] : file.archive().tree.root.members()) {
    const auto at = index.weight_map.find(tensor);
    if (node.kind() != TorchNode::Kind::kTensor) {
      TorchNode others;
      others.Add(tensor, node);
      if (const std::vector<TorchObject> objects = TakeObjects(others); !objects.empty()) {
        return Annotate(RefuseObjects(objects), file.path());
      }
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": ", Quote(tensor), " is not a tensor, but the files of an index hold a plain state dict"));
    }
    if (at == index.weight_map.end() || at->second != name) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Quote(tensor), " of ", file.path(), " is not placed there by ", kTorchIndexName));
    }
    root.Add(tensor, TorchNode::Tensor(first + node.tensor()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchFiles> OpenTorchFiles(const std::string& directory, const std::vector<std::string>& names,
                                          const TensorSourceOptions& options) {
  TorchFiles files;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(files.emplace_back(), TorchFile::Open(JoinPath(directory, name), options));
  }
  return files;
}

absl::StatusOr<JoinedFiles> JoinOneFile(const std::string& path, const TensorSourceOptions& options) {
  TorchFiles files;
  FSDP_ASSIGN_OR_RETURN(files.emplace_back(), TorchFile::Open(path, options));
  TorchNode root = files[0]->TakeRoot();
  TensorList tensors(files);
  return JoinedFiles{.files = std::move(files), .root = std::move(root), .tensors = std::move(tensors)};
}

// Every file that the index names is opened and must have exactly the tensors that the index places in it.
absl::StatusOr<JoinedFiles> JoinIndexedFiles(const std::string& directory, const TensorSourceOptions& options) {
  const std::string index_path = JoinPath(directory, kTorchIndexName);
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), index_path, kMaxHuggingFaceIndexBytes));
  const absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(text);
  if (!index.ok()) {
    const auto error =
        absl::Status(index.status().code(), absl::StrCat(std::string(index.status().message()), " in ", index_path));
    return ErrorOfText(error, index_path, text);
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->weight_map) names.insert(file);
  FSDP_ASSIGN_OR_RETURN(TorchFiles files, OpenTorchFiles(directory, {names.begin(), names.end()}, options));
  TorchNode root;
  int tensors = 0;
  for (const std::shared_ptr<TorchFile>& file : files) {
    FSDP_RETURN_IF_ERROR(AddMembers(*file, *index, tensors, root));
    tensors += static_cast<int>(file->archive().tree.tensors.size());
  }
  for (const auto& [tensor, file] : index->weight_map) {
    if (root.Find(tensor) != nullptr) continue;
    return absl::DataLossError(absl::StrCat("tensor ", Quote(tensor), " is missing in ", Quote(file), ", in which ",
                                            index_path, " places it"));
  }
  TensorList all(files);
  return JoinedFiles{.files = std::move(files), .root = std::move(root), .tensors = std::move(all)};
}

std::vector<TorchRankFile> RankFilesOf(const TorchFiles& files) {
  std::vector<TorchRankFile> ranks;
  for (const std::shared_ptr<TorchFile>& file : files) {
    const TorchTree& tree = file->archive().tree;
    TorchRankFile& rank = ranks.emplace_back();
    rank.name = SplitPath(file->path()).name;
    rank.root = &tree.root;
    for (size_t i = 0; i < tree.tensors.size(); ++i) {
      rank.types.push_back({tree.tensors.dtype(i), tree.tensors.shape(i)});
    }
  }
  return ranks;
}

// The trees of all ranks become one (rank_tree.h); a tensor of it has one or more parts, each in a rank's file.
absl::StatusOr<JoinedFiles> JoinRankFiles(const TorchFiles& files, RankState state) {
  const RankPartsEqual equal = [&](const RankPart& a, const RankPart& b) {
    return AreEqual({files[a.rank].get(), a.tensor}, {files[b.rank].get(), b.tensor});
  };
  FSDP_ASSIGN_OR_RETURN(RankTree merged, MergeRankTrees(RankFilesOf(files), state, equal));
  std::vector<TensorRefs> tensors;
  for (const std::vector<RankPart>& parts : merged.tensors) {
    TensorRefs& refs = tensors.emplace_back();
    for (const RankPart& part : parts) refs.push_back({files[part.rank].get(), part.tensor});
  }
  const auto ranks = static_cast<int>(files.size());
  return JoinedFiles{.files = files,
                     .root = std::move(merged.root),
                     .tensors = TensorList(std::move(tensors)),
                     .ranks = ranks,
                     .shards = state == RankState::kShards ? ranks : 1};
}

}  // namespace fsdp
