// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"

#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_optimizer.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Kind = TorchNode::Kind;

// "optim_rank", 12, ".pt": a file name, split around its last number.
struct RankName {
  std::string before;
  std::optional<int> rank;  // that number
  std::string after;
};

RankName SplitName(const std::string& name) {
  const size_t last = name.find_last_of("0123456789");
  if (last == name.npos) return {.before = name, .rank = std::nullopt, .after = ""};
  size_t first = last;
  while (first > 0 && std::isdigit(static_cast<unsigned char>(name[first - 1])) != 0) --first;
  RankName split = {.before = name.substr(0, first), .rank = std::nullopt, .after = name.substr(last + 1)};
  // So that SimpleAtoi cannot overflow, and a date in a name is not taken for a rank.
  constexpr size_t kMaxDigits = 6;
  int rank = 0;
  const bool is_short = last - first < kMaxDigits;
  if (is_short && absl::SimpleAtoi(name.substr(first, last - first + 1), &rank)) split.rank = rank;
  return split;
}

class Merger {
 public:
  explicit Merger(const std::vector<std::vector<TorchLeafType>>& types) : types_(types) {}

  // A rank's node at a place in the tree. A rank without elements of a parameter has no node there.
  struct Member {
    int rank = 0;
    const TorchNode* node = nullptr;
  };

  // Merges the nodes of all ranks that have one at the place `name`. `is_state`: the place is inside an optimizer's
  // state, in which one-dimensional tensors are shards. Elsewhere (the model, if every rank saved it whole) they are
  // copies.
  absl::StatusOr<TorchNode> Merge(const std::string& name, const std::vector<Member>& members, bool is_state) {
    const TorchNode& first = *members[0].node;
    for (const Member& member : members) {
      // Before the merge descends: members of different kinds have no common meaning.
      if (member.node->kind() != first.kind()) {
        return absl::InvalidArgumentError(absl::StrCat(Quote(name), " is not the same in the files of all ranks"));
      }
    }
    if (first.kind() == Kind::kTensor) return MergeTensor(name, members, is_state);
    if (first.kind() == Kind::kValue) return first;
    const bool is_optimizer = IsTorchOptimizer(first);
    // The union of the members, in the order of first appearance: ranks hold different parameters.
    std::vector<std::pair<std::string, std::vector<Member>>> by_name;
    std::map<std::string, size_t> index;
    for (const Member& member : members) {
      for (const auto& [child, node] : member.node->members()) {
        const auto [at, is_new] = index.try_emplace(child, by_name.size());
        if (is_new) by_name.push_back({child, {}});
        by_name[at->second].second.push_back({member.rank, &node});
      }
    }
    TorchNode merged;
    merged.TakeForm(first);
    for (const auto& [child, nodes] : by_name) {
      const std::string path = name.empty() ? child : absl::StrCat(name, ".", child);
      FSDP_ASSIGN_OR_RETURN(TorchNode node, Merge(path, nodes, is_state || (is_optimizer && child == "state")));
      merged.Add(child, std::move(node));
    }
    return merged;
  }

  std::vector<std::vector<RankTree::Part>> TakeTensors() { return std::move(tensors_); }

 private:
  absl::StatusOr<TorchNode> MergeTensor(const std::string& name, const std::vector<Member>& members, bool is_state) {
    const auto type = [&](const Member& member) { return types_[member.rank][member.node->tensor()]; };
    const TorchLeafType first = type(members[0]);
    // "step" and other numbers have no dimension: every rank has the same value, and the first one's is used.
    const bool is_shard = is_state && first.shape.rank() == 1;
    constexpr int64_t kMaxNumel = int64_t{1} << 60;  // the limit for one tensor (shape.h): a view can claim any number
    std::vector<RankTree::Part>& parts = tensors_.emplace_back();
    int64_t numel = 0;
    for (const Member& member : members) {
      const TorchLeafType other = type(member);
      if (other.dtype != first.dtype || (is_shard ? other.shape.rank() != 1 : other.shape != first.shape)) {
        return absl::InvalidArgumentError(absl::StrCat(Quote(name), " has shape ", other.shape.ToString(),
                                                       " in the file of rank ", member.rank, " and ",
                                                       first.shape.ToString(), " in the file of rank ", members[0].rank,
                                                       ", and is not a shard of a flat parameter"));
      }
      if (!is_shard && !parts.empty()) continue;
      if (other.shape.numel() > kMaxNumel - numel) {
        return absl::DataLossError(absl::StrCat("the shards of ", Quote(name), " have more than 2^60 elements"));
      }
      numel += other.shape.numel();
      parts.push_back({member.rank, member.node->tensor()});
    }
    return TorchNode::Tensor(static_cast<int>(tensors_.size() - 1));
  }

  const std::vector<std::vector<TorchLeafType>>& types_;
  std::vector<std::vector<RankTree::Part>> tensors_;
};

}  // namespace

std::vector<std::string> RankFilesIn(const std::string& directory) {
  // Sorted by number and not by name: rank10 must come after rank9.
  std::map<int, std::string> names;
  std::string before;
  std::string after;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!absl::EndsWith(name, ".pt") && !absl::EndsWith(name, ".pth") && !absl::EndsWith(name, ".bin")) continue;
    const RankName split = SplitName(name);
    if (names.empty()) {
      before = split.before;
      after = split.after;
    }
    // Any other file of this kind, or a second name for a rank, makes the set ambiguous: nothing is recognised then.
    if (!split.rank || split.before != before || split.after != after) return {};
    if (!names.try_emplace(*split.rank, name).second) return {};
  }
  // Ranks 0 to count - 1, without a gap: ranks are distinct, so the first and the last decide.
  const auto count = static_cast<int>(names.size());
  if (count < 2 || names.begin()->first != 0 || names.rbegin()->first != count - 1) return {};
  std::vector<std::string> by_rank;
  for (const auto& [rank, name] : names) by_rank.push_back(name);
  return by_rank;
}

absl::StatusOr<RankTree> MergeRankTrees(const std::vector<const TorchNode*>& roots,
                                        const std::vector<std::vector<TorchLeafType>>& types) {
  Merger merger(types);
  std::vector<Merger::Member> members;
  for (const TorchNode* root : roots) members.push_back({static_cast<int>(members.size()), root});
  RankTree tree;
  FSDP_ASSIGN_OR_RETURN(tree.root, merger.Merge("", members, false));
  tree.tensors = merger.TakeTensors();
  return tree;
}

}  // namespace fsdp
