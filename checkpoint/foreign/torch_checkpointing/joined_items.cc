// SPDX-License-Identifier: Apache-2.0
//
// ItemJoiner merges the trees of one item; item_tensors.h joins their tensors.
#include "fsdp/checkpoint/foreign/torch_checkpointing/joined_items.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_meshes.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_tensors.h"
#include "fsdp/checkpoint/source/joined_tensor.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

// None, and an empty dict, stand for what another rank has.
bool IsNothing(const TorchNode& node) {
  return node.kind() == Kind::kValue && (node.value().is_null() || (node.value().is_object() && node.value().empty()));
}

// Files of different steps are not of one save.
bool CountsSteps(const ItemPlace& place, const PythonJson& value) {
  constexpr std::array kWords = {"step", "epoch", "iter"};
  const std::string name = absl::AsciiStrToLower(place.name);
  return place.depth < 2 && value.is_number() &&
         std::any_of(kWords.begin(), kWords.end(), [&](const char* word) { return absl::StrContains(name, word); });
}

std::string NameOfRank(int rank) { return absl::StrCat("rank_", rank); }

// The trees of all ranks' files are merged into one, file by file, so that only one file's tree is in memory besides
// the result. If ranks have the same path: tensors are parts or copies (ItemTensors); values must be equal, or
// become a dict by rank, unless they are of an optimizer or count steps, where a difference means that the files are of
// different saves.
class ItemJoiner {
 public:
  ItemJoiner(const PlannedItem& item, const ItemPlan& plan, FilePool& pool, ItemMeshes& meshes, CopyBudget& budget,
             JoinedItems& items)
      : item_(item),
        metadata_(item.metadata < 0 ? nullptr : &plan.metadata.items[item.metadata]),
        meshes_(meshes),
        tensors_(item, plan, pool, meshes, budget, items),
        items_(items),
        first_tensor_(items.tensors.size()) {}

  absl::Status Add(int rank, std::unique_ptr<ItemFile> added) {
    rank_ = rank;
    file_ = added.get();
    items_.files.push_back(std::move(added));
    if (!file_->left_out().empty()) {
      items_.left_out.push_back(file_->left_out());
      return absl::OkStatus();
    }
    tensors_.StartFile(rank, *file_, static_cast<int32_t>(items_.files.size() - 1));
    TorchNode root = file_->TakeRoot();
    if (file_->format() == ItemFormat::kSafetensors && metadata_ != nullptr) {
      FSDP_ASSIGN_OR_RETURN(root, Nested(std::move(root)));
    }
    ItemPlace place;
    place.name = item_.name;
    const int64_t before = in_file_;
    if (has_tree_) {
      FSDP_RETURN_IF_ERROR(Merge(place, root, tree_));
    } else {
      FSDP_ASSIGN_OR_RETURN(tree_, Made(place, root));
      has_tree_ = true;
    }
    least_in_file_ = std::min(least_in_file_, in_file_ - before);
    file_->DropDTensors();
    meshes_.ForgetFile();
    return absl::OkStatus();
  }

  // The tree of the item, once all files are added. nullopt if no file has a value.
  absl::StatusOr<std::optional<TorchNode>> Finish() {
    FSDP_RETURN_IF_ERROR(tensors_.Finish());
    if (!has_tree_) return std::optional<TorchNode>();
    const bool has_parts =
        std::any_of(items_.tensors.begin() + static_cast<int64_t>(first_tensor_), items_.tensors.end(),
                    [](const JoinedItem& tensor) { return tensor.dtensor != nullptr; });
    const bool is_model = !has_optimizer_ && (has_parts || item_.name == "model");
    items_.has_stages |= is_model && least_in_file_ < names_;
    return std::optional<TorchNode>(std::move(tree_));
  }

 private:
  // The node as a part of the merged tree: its tensors get the numbers of JoinedItems.
  // Moves the node instead of copying it; its form (list, integer keys) is kept, since it decides what the value
  // becomes in Python.
  absl::StatusOr<TorchNode> Made(ItemPlace place, TorchNode& node) {
    if (node.kind() == Kind::kTensor) {
      ++names_;
      ++in_file_;
      FSDP_ASSIGN_OR_RETURN(const int number, tensors_.Add(place, node.tensor()));
      return TorchNode::Tensor(number);
    }
    if (node.kind() == Kind::kValue) {
      ranks_of_value_[place.key].push_back(rank_);
      return std::move(node);
    }
    SeeOptimizer(place, node);
    TorchNode made;
    made.TakeForm(node);
    made.Reserve(static_cast<int64_t>(node.members().size()));
    const bool is_list = node.is_list;
    FSDP_RETURN_IF_ERROR(node.Consume([&](const std::string& name, TorchNode& member) -> absl::Status {
      const bool has_json_name = member.has_json_name;
      FSDP_ASSIGN_OR_RETURN(TorchNode child, Made(place.Inside(name, is_list || has_json_name), member));
      child.has_json_name = has_json_name;
      made.Add(name, std::move(child));
      return absl::OkStatus();
    }));
    return made;
  }

  // The order of the questions matters: nothing merges with anything, and a path that already became a dict by rank
  // takes every further value.
  absl::Status Merge(ItemPlace place, TorchNode& node, TorchNode& into) {
    const bool has_json_name = into.has_json_name;
    if (IsNothing(node) && into.kind() != Kind::kValue) return absl::OkStatus();
    if (IsNothing(into) && node.kind() != Kind::kValue) {
      FSDP_ASSIGN_OR_RETURN(into, Made(place, node));
      into.has_json_name = has_json_name;
      return absl::OkStatus();
    }
    if (by_rank_.contains(place.key)) {
      FSDP_RETURN_IF_ERROR(AddOfRank(place, node, into));
      into.has_json_name = has_json_name;
      return absl::OkStatus();
    }
    if (node.kind() != into.kind() || node.is_list != into.is_list) return OtherKind(place);
    if (node.kind() == Kind::kTensor) return MergeTensor(place, node, into);
    if (node.kind() == Kind::kValue) return MergeValue(place, node, into);
    SeeOptimizer(place, into);
    const bool is_list = node.is_list;
    return node.Consume([&](const std::string& name, TorchNode& member) -> absl::Status {
      const bool is_integer = member.has_json_name;
      const ItemPlace inner = place.Inside(name, is_list || is_integer);
      if (TorchNode* const found = into.Find(name)) return Merge(inner, member, *found);
      FSDP_ASSIGN_OR_RETURN(TorchNode child, Made(inner, member));
      child.has_json_name = is_integer;
      into.Add(name, std::move(child));
      return absl::OkStatus();
    });
  }

  absl::Status MergeTensor(const ItemPlace& place, TorchNode& node, TorchNode& into) {
    FSDP_ASSIGN_OR_RETURN(const bool is_merged, tensors_.Merge(place, node.tensor(), into.tensor()));
    if (is_merged) {
      ++in_file_;
      return absl::OkStatus();
    }
    // Ranks between the first one and this had the same as the first.
    TorchNode by_rank;
    by_rank.Add(NameOfRank(tensors_.FirstRankOf(into.tensor())), TorchNode::Tensor(into.tensor()));
    by_rank.has_json_name = into.has_json_name;
    into = std::move(by_rank);
    by_rank_.insert(place.key);
    --names_;
    return AddOfRank(place, node, into);
  }

  absl::Status MergeValue(const ItemPlace& place, TorchNode& node, TorchNode& into) {
    std::vector<int>& ranks = ranks_of_value_[place.key];
    if (node.value() == into.value()) {
      ranks.push_back(rank_);
      return absl::OkStatus();
    }
    if (place.is_in_optimizer || CountsSteps(place, node.value())) {
      return Broken(place,
                    "differs from the value in the files of the ranks before: they are not of one save, or "
                    "stages of a pipeline count their parameters by equal numbers");
    }
    PythonJson by_rank = PythonJson::object();
    for (const int rank : ranks) by_rank[NameOfRank(rank)] = into.value();
    const bool has_json_name = into.has_json_name;
    into = TorchNode::Value(std::move(by_rank));
    by_rank_.insert(place.key);
    ranks_of_value_.erase(place.key);
    FSDP_RETURN_IF_ERROR(AddOfRank(place, node, into));
    into.has_json_name = has_json_name;
    return absl::OkStatus();
  }

  // `into` is {"rank_0": ..., ...}, of tensors or of values.
  absl::Status AddOfRank(const ItemPlace& place, TorchNode& node, TorchNode& into) {
    if ((node.kind() == Kind::kTensor) != into.is_branch()) return OtherKind(place);
    if (node.kind() == Kind::kTensor) {
      FSDP_ASSIGN_OR_RETURN(const int number, tensors_.Add(place, node.tensor()));
      into.Add(NameOfRank(rank_), TorchNode::Tensor(number));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(PythonJson value, node.ToJson());
    PythonJson by_rank = into.value();
    by_rank[NameOfRank(rank_)] = std::move(value);
    into = TorchNode::Value(std::move(by_rank));
    return absl::OkStatus();
  }

  // The dict of a safetensors file, whose names are paths joined by dots, as metadata.pkl nests them.
  absl::StatusOr<TorchNode> Nested(TorchNode flat) {
    if (by_name_.empty()) FSDP_RETURN_IF_ERROR(JoinNames());
    TorchNode nested;
    FSDP_RETURN_IF_ERROR(flat.Consume([&](const std::string& name, TorchNode& member) {
      const auto at = by_name_.find(name);
      return Insert(name, at == by_name_.end() ? ItemPath{{name, false}} : at->second->path, std::move(member), nested);
    }));
    return nested;
  }

  absl::Status JoinNames() {
    for (const ItemTensor& tensor : metadata_->tensors) {
      std::vector<absl::string_view> names;
      for (const ItemPathElement& element : tensor.path) names.push_back(element.name);
      const std::string name = absl::StrJoin(names, ".");
      if (by_name_.try_emplace(name, &tensor).second) continue;
      return absl::DataLossError(absl::StrCat("two paths of item ", Quote(item_.name), " in ", kItemsMetadataName,
                                              " are ", Quote(name), " in ", file_->name()));
    }
    return absl::OkStatus();
  }

  // Two paths of metadata.pkl that contradict each other, such as ["a"] and ["a", "b"], cannot both be in a dict.
  static absl::Status Insert(const std::string& name, const ItemPath& path, TorchNode leaf, TorchNode& root) {
    const auto broken = [&] {
      return absl::DataLossError(absl::StrCat("the path of ", Quote(name), " in ", kItemsMetadataName,
                                              " is empty or too deep, or contradicts another one"));
    };
    if (path.empty() || path.size() > static_cast<size_t>(kMaxTorchDepth)) return broken();
    TorchNode* node = &root;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool is_last = i + 1 == path.size();
      TorchNode* next = is_last ? nullptr : node->Find(path[i].name);
      if (next == nullptr) next = node->Add(path[i].name, is_last ? std::move(leaf) : TorchNode());
      if (next == nullptr || (!is_last && !next->is_branch())) return broken();
      next->has_json_name = path[i].is_integer;
      node = next;
    }
    return absl::OkStatus();
  }

  void SeeOptimizer(ItemPlace& place, const TorchNode& node) {
    place.is_in_optimizer |= IsTorchOptimizer(node);
    has_optimizer_ |= place.is_in_optimizer;
  }

  absl::Status OtherKind(const ItemPlace& place) const {
    return Broken(place, "is of another kind than in the files of the ranks before");
  }

  absl::Status Broken(const ItemPlace& place, const std::string& what) const {
    return absl::DataLossError(absl::StrCat(Quote(place.name), " of ", file_->name(), " ", what));
  }

  const PlannedItem& item_;
  const ItemMetadata* const metadata_;  // null without
  ItemMeshes& meshes_;
  ItemTensors tensors_;
  JoinedItems& items_;
  const size_t first_tensor_;  // in items_.tensors

  int rank_ = 0;  // of the file that is being added
  ItemFile* file_ = nullptr;
  TorchNode tree_;
  bool has_tree_ = false;
  bool has_optimizer_ = false;
  int64_t names_ = 0;    // of tensors in the tree
  int64_t in_file_ = 0;  // tensors in all files, and the least in one
  int64_t least_in_file_ = INT64_MAX;
  absl::flat_hash_map<std::string, const ItemTensor*> by_name_;        // of safetensors files
  absl::flat_hash_map<std::string, std::vector<int>> ranks_of_value_;  // that have the value of the tree, by key
  absl::flat_hash_set<std::string> by_rank_;                           // keys of what became {"rank_0": ...}
};

}  // namespace

// Items one after the other, and their files in the order of ranks, so that "the first rank" is the same in every run.
absl::StatusOr<JoinedItems> JoinItems(const std::string& directory, const ItemPlan& plan,
                                      const TensorSourceOptions& options, FilePool& pool) {
  JoinedItems items;
  ItemMeshes meshes;
  CopyBudget budget;
  for (const PlannedItem& item : plan.items) {
    ItemJoiner joiner(item, plan, pool, meshes, budget, items);
    for (size_t rank = 0; rank < item.files.size(); ++rank) {
      if (!item.files[rank]) continue;
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ItemFile> file,
                            ItemFile::Open(directory, *item.files[rank], options, pool));
      const absl::Status status = joiner.Add(static_cast<int>(rank), std::move(file));
      if (!status.ok()) return Annotate(status, directory);
    }
    absl::StatusOr<std::optional<TorchNode>> tree = joiner.Finish();
    if (!tree.ok()) return Annotate(tree.status(), directory);
    if (!tree->has_value()) continue;
    if (plan.is_one_dict) {
      items.root = std::move(**tree);
    } else {
      items.root.Add(item.name, std::move(**tree));
    }
  }
  return items;
}

absl::Status ReadJoinedItem(const JoinedItems& items, int tensor, const Interval& interval, FilePool& pool,
                            std::byte* out) {
  const JoinedItem& joined = items.tensors[tensor];
  const int64_t size = SizeOf(joined.dtype);
  const auto elements = [size](int64_t offset, absl::Span<std::byte> to) {
    return Interval{offset / size, (offset + static_cast<int64_t>(to.size())) / size};
  };
  // Three forms of a joined tensor: boxes that the ranks state, one whole copy, or the parts of a DTensor.
  std::vector<JoinedPiece> pieces;
  if (joined.has_shards) {
    for (const JoinedItem::Shard& shard : joined.shards) {
      pieces.push_back({shard.box, static_cast<int64_t>(pieces.size()), 0});
    }
    const auto read = [&](int64_t part, int64_t offset, absl::Span<std::byte> to) -> absl::Status {
      const JoinedItem::Shard& shard = joined.shards[part];
      FSDP_ASSIGN_OR_RETURN(const Shape shape, Shape::Create(shard.box.count));
      return items.files[shard.part.file]->ReadBox(pool, shard.part.tensor, shard.local_start, shape,
                                                   elements(offset, to), to.data());
    };
    return ReadJoined(joined.shape, size, pieces, interval, read, out);
  }
  const auto read = [&](int64_t part, int64_t offset, absl::Span<std::byte> to) {
    const LocalPart& local = joined.parts[part];
    return items.files[local.file]->Read(pool, local.tensor, elements(offset, to), to.data());
  };
  if (joined.dtensor == nullptr) {
    const LocalPart& whole = joined.parts[0];
    return items.files[whole.file]->Read(pool, whole.tensor, interval, out);
  }
  for (size_t place = 0; place < joined.parts.size(); ++place) {
    const auto at = static_cast<int64_t>(place);
    if (joined.parts[place].file >= 0) pieces.push_back({BoxOf(*joined.dtensor, at), at, 0});
  }
  return ReadJoined(joined.shape, size, pieces, interval, read, out);
}

}  // namespace fsdp
