// SPDX-License-Identifier: Apache-2.0
//
// One walk over all trees. At each place the nodes of the files that have it are merged; what a file lacks must be in
// one of the others together with all its siblings, so that a model of which each file has other layers is not taken
// for a whole one.
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr char kNotJoined[] =
    "; files that differ are neither copies nor shards of FSDP1's optimizer state, and nothing in them says how they "
    "are joined: give one of them if each is a checkpoint, otherwise join them with the program that saved them";

// A node without a tensor is one value, a dict too. None and an empty dict stand for what only rank 0 has
// (rank0_only=True).
bool IsNothing(const TorchNode& node) {
  return node.kind() == Kind::kValue && (node.value().is_null() || (node.value().is_object() && node.value().empty()));
}

// 1 and 1.0, and 0.0 and -0.0, are equal and not the same.
bool AreIdentical(const PythonJson& a, const PythonJson& b) {
  const auto text = [](const PythonJson& value) {
    return value.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
  };
  return a == b && text(a) == text(b);
}

bool IsFlatState(const TorchNode& node, const std::vector<TorchLeafType>& types) {
  if (node.kind() == Kind::kTensor) return types[node.tensor()].shape.rank() < 2;
  return std::all_of(node.members().begin(), node.members().end(),
                     [&](const auto& member) { return IsFlatState(member.second, types); });
}

// Adds each optimizer's "state" below `node`.
void FindStates(const TorchNode& node, std::vector<const TorchNode*>& states) {
  if (!node.is_branch()) return;
  if (IsTorchOptimizer(node)) {
    const TorchNode* const state = node.Find("state");
    if (state != nullptr && state->is_branch()) states.push_back(state);
    return;
  }
  for (const auto& [name, member] : node.members()) FindStates(member, states);
}

TorchNode EmptyOptimizer() {
  TorchNode optimizer;
  optimizer.Add("state", TorchNode::Value(PythonJson::object()));
  optimizer.Add("param_groups", TorchNode::Value(PythonJson::array()));
  return optimizer;
}

class Merger {
 public:
  Merger(const std::vector<TorchRankFile>& files, RankState state, const RankPartsEqual& equal)
      : files_(files), state_(state), equal_(equal) {}

  // A rank's node at a place in the tree. A rank without elements of a parameter has no node there.
  struct Member {
    int rank = 0;
    const TorchNode* node = nullptr;
  };
  using Members = std::vector<Member>;

  enum class Part { kOutside, kOptimizer, kState };

  // A place in the tree: "optim.state.0" has depth 3.
  struct Place {
    std::string name;
    int depth = 0;
    Part part = Part::kOutside;
  };

  absl::StatusOr<TorchNode> Merge(const Place& place, Members members) {
    KeepWhatIsThere(members);
    for (const Member& member : members) {
      // Before the merge descends: members of different kinds have no common meaning.
      if (member.node->kind() != members[0].node->kind()) return Differ(place, members[0], member);
    }
    switch (members[0].node->kind()) {
      case Kind::kTensor:
        return MergeTensor(place, members);
      case Kind::kValue:
        return MergeValue(place, members);
      case Kind::kBranch:
        return MergeBranch(place, members);
    }
    return TorchNode();
  }

  std::vector<std::vector<RankPart>> TakeTensors() { return std::move(tensors_); }

 private:
  // If some ranks have a dict with tensors, a dict of plain values is a dict too, and an empty one or None is no
  // member.
  void KeepWhatIsThere(Members& members) {
    const auto is_branch = [](const Member& member) { return member.node->is_branch(); };
    if (std::none_of(members.begin(), members.end(), is_branch)) return;
    members.erase(std::remove_if(members.begin(), members.end(), [](const auto& m) { return IsNothing(*m.node); }),
                  members.end());
    for (Member& member : members) {
      TorchNode storage;
      if (&Expanded(*member.node, storage) == &storage) member.node = &expanded_.emplace_back(std::move(storage));
    }
  }

  absl::StatusOr<TorchNode> MergeBranch(const Place& place, const Members& members) {
    const bool is_optimizer =
        std::any_of(members.begin(), members.end(), [](const Member& m) { return IsTorchOptimizer(*m.node); });
    if (is_optimizer && state_ == RankState::kLeftOut && place.depth > 0) return EmptyOptimizer();
    // The union of the members, in the order of first appearance: ranks hold different parameters.
    std::vector<std::pair<std::string, Members>> by_name;
    std::map<std::string, size_t> index;
    for (const Member& member : members) {
      for (const auto& [child, node] : member.node->members()) {
        const auto [at, is_new] = index.try_emplace(child, by_name.size());
        if (is_new) by_name.push_back({child, {}});
        by_name[at->second].second.push_back({member.rank, &node});
      }
    }
    if (!AreShards(place)) FSDP_RETURN_IF_ERROR(CheckOneHasAll(place, members, by_name));
    TorchNode merged;
    merged.TakeForm(*members[0].node);
    for (auto& [child, nodes] : by_name) {
      Place at = {place.name.empty() ? child : absl::StrCat(place.name, ".", child), place.depth + 1, place.part};
      if (is_optimizer && at.part == Part::kOutside) at.part = child == "state" ? Part::kState : Part::kOptimizer;
      FSDP_ASSIGN_OR_RETURN(TorchNode node, Merge(at, std::move(nodes)));
      merged.Add(child, std::move(node));
    }
    return merged;
  }

  bool AreShards(const Place& place) const { return state_ == RankState::kShards && place.part == Part::kState; }

  // One file must have every member. Otherwise each has a part of something.
  absl::Status CheckOneHasAll(const Place& place, const Members& members,
                              const std::vector<std::pair<std::string, Members>>& by_name) const {
    const auto count = [](const Member& member) { return member.node->members().size(); };
    const auto most = std::max_element(members.begin(), members.end(),
                                       [&](const Member& a, const Member& b) { return count(a) < count(b); });
    if (count(*most) == by_name.size()) return absl::OkStatus();
    const auto lacks = [&](const auto& child) { return most->node->Find(child.first) == nullptr; };
    const auto& [child, others] = *std::find_if(by_name.begin(), by_name.end(), lacks);
    return absl::InvalidArgumentError(absl::StrCat(
        Quote(place.name.empty() ? child : absl::StrCat(place.name, ".", child)), " is in ", NameOf(others[0]),
        " and not in ", NameOf(*most), ", which holds what the other lacks", kNotJoined));
  }

  absl::StatusOr<TorchNode> MergeValue(const Place& place, const Members& members) {
    const auto differs = std::find_if(members.begin(), members.end(), [&](const Member& member) {
      return !AreIdentical(member.node->value(), members[0].node->value());
    });
    if (differs == members.end()) return *members[0].node;
    if (place.part != Part::kOutside || CountsSteps(place, *differs)) return Differ(place, members[0], *differs);
    return ByRank(members);
  }

  absl::StatusOr<TorchNode> MergeTensor(const Place& place, const Members& members) {
    if (AreShards(place) && TypeOf(members[0]).shape.rank() == 1) return Concatenate(place, members);
    for (const Member& member : members) {
      FSDP_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(members[0], member));
      if (is_equal) continue;
      if (IsGeneratorState(place, member)) return ByRank(members);
      return Differ(place, members[0], member);
    }
    return AddTensor(members[0]);
  }

  absl::StatusOr<TorchNode> Concatenate(const Place& place, const Members& members) {
    constexpr int64_t kMaxNumel = int64_t{1} << 60;  // the limit for one tensor (shape.h): a view can claim any number
    const TorchLeafType first = TypeOf(members[0]);
    std::vector<RankPart> parts;
    int64_t numel = 0;
    for (const Member& member : members) {
      const TorchLeafType type = TypeOf(member);
      if (type.dtype != first.dtype || type.shape.rank() != 1) return Differ(place, members[0], member);
      if (type.shape.numel() > kMaxNumel - numel) {
        return absl::DataLossError(absl::StrCat("the shards of ", Quote(place.name), " have more than 2^60 elements"));
      }
      numel += type.shape.numel();
      parts.push_back({member.rank, member.node->tensor()});
    }
    tensors_.push_back(std::move(parts));
    return TorchNode::Tensor(static_cast<int>(tensors_.size() - 1));
  }

  TorchNode AddTensor(const Member& member) {
    tensors_.push_back({{member.rank, member.node->tensor()}});
    return TorchNode::Tensor(static_cast<int>(tensors_.size() - 1));
  }

  // {"rank_0": ..., "rank_1": ...}
  TorchNode ByRank(const Members& members) {
    TorchNode by_rank;
    for (const Member& member : members) {
      const bool is_tensor = member.node->kind() == Kind::kTensor;
      by_rank.Add(absl::StrCat("rank_", member.rank), is_tensor ? AddTensor(member) : *member.node);
    }
    return by_rank;
  }

  // A generator's state is as its rank left it: bytes, under a name such as "rng_state" or "cuda_rng".
  bool IsGeneratorState(const Place& place, const Member& member) const {
    const std::string name = absl::AsciiStrToLower(place.name);
    const TorchLeafType type = TypeOf(member);
    return place.part == Part::kOutside && type.dtype == DType::kUInt8 && type.shape.rank() == 1 &&
           (absl::StrContains(name, "rng") || absl::StrContains(name, "generator"));
  }

  // Files of different steps are not the files of one save.
  static bool CountsSteps(const Place& place, const Member& member) {
    constexpr std::array kWords = {"step", "epoch", "iter"};
    const std::string name = absl::AsciiStrToLower(place.name);
    return place.depth == 1 && member.node->value().is_number() &&
           std::any_of(kWords.begin(), kWords.end(), [&](const char* word) { return absl::StrContains(name, word); });
  }

  absl::StatusOr<bool> AreEqual(const Member& a, const Member& b) const {
    const TorchLeafType type = TypeOf(a);
    if (type.dtype != TypeOf(b).dtype || type.shape != TypeOf(b).shape) return false;
    if (a.rank == b.rank) return true;
    return equal_({a.rank, a.node->tensor()}, {b.rank, b.node->tensor()});
  }

  const TorchLeafType& TypeOf(const Member& member) const { return files_[member.rank].types[member.node->tensor()]; }
  const std::string& NameOf(const Member& member) const { return files_[member.rank].name; }

  // "float32 [4, 2]", "3", "a dict with tensors".
  std::string Describe(const Member& member) const {
    switch (member.node->kind()) {
      case Kind::kTensor:
        return absl::StrCat(std::string(DTypeName(TypeOf(member).dtype)), " ", TypeOf(member).shape.ToString());
      case Kind::kValue:
        return Printable(member.node->value().dump(-1, ' ', false, PythonJson::error_handler_t::replace));
      case Kind::kBranch:
        return "a dict with tensors";
    }
    return "";
  }

  absl::Status Differ(const Place& place, const Member& a, const Member& b) const {
    const std::string of_a = Describe(a);
    const std::string of_b = Describe(b);
    const std::string what = of_a == of_b
                                 ? absl::StrCat(" (", of_a, ") has other values in ", NameOf(b), " than in ", NameOf(a))
                                 : absl::StrCat(" is ", of_a, " in ", NameOf(a), " and ", of_b, " in ", NameOf(b));
    return absl::InvalidArgumentError(absl::StrCat(Quote(place.name), what, kNotJoined));
  }

  const std::vector<TorchRankFile>& files_;
  const RankState state_;
  const RankPartsEqual& equal_;
  std::deque<TorchNode> expanded_;  // nodes that members point to
  std::vector<std::vector<RankPart>> tensors_;
};

}  // namespace

bool MayHoldShards(const std::vector<TorchRankFile>& files) {
  bool has_state = false;
  for (const TorchRankFile& file : files) {
    std::vector<const TorchNode*> states;
    FindStates(*file.root, states);
    for (const TorchNode* state : states) {
      if (!IsFlatState(*state, file.types)) return false;
      has_state = true;
    }
  }
  return has_state;
}

absl::StatusOr<RankTree> MergeRankTrees(const std::vector<TorchRankFile>& files, RankState state,
                                        const RankPartsEqual& equal) {
  Merger merger(files, state, equal);
  Merger::Members members;
  for (const TorchRankFile& file : files) members.push_back({static_cast<int>(members.size()), file.root});
  RankTree tree;
  FSDP_ASSIGN_OR_RETURN(tree.root, merger.Merge({}, std::move(members)));
  tree.tensors = merger.TakeTensors();
  return tree;
}

}  // namespace fsdp
