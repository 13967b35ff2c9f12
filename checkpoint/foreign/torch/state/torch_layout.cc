// SPDX-License-Identifier: Apache-2.0
//
// One walk gathers the facts of every dict (branch_facts.h). The rules of the header then choose branches by their
// facts, and TorchBranch is the tree of the chosen ones: it has a node for each of them and for what is above it, so it
// is small whatever the size of the model.
#include "fsdp/checkpoint/foreign/torch/state/torch_layout.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/branch_facts.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;
using Role = TorchBranch::Role;
using Path = std::vector<std::string>;

bool IsUsualOptimizerName(std::string_view key) {
  static constexpr std::array kNames = {"optim", "optimizer", "optimizer_state_dict", "optim_state_dict"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

// A branch that was chosen for a model.
struct Choice {
  Path path;
  bool is_top = false;  // TorchBranch::Role::kTopModel

  bool is_usual() const { return !path.empty() && IsUsualModelName(path.back()); }
  std::string ToString() const {
    if (path.empty()) return is_top ? "the tensors at the top" : "the whole dict";
    return absl::StrCat(is_top ? "the tensors of " : "", Quote(absl::StrJoin(path, ".")));
  }
};

Path Longer(Path path, std::string_view key) {
  path.emplace_back(key);
  return path;
}

std::string PrefixOf(const Path& path) { return path.empty() ? "" : absl::StrCat(absl::StrJoin(path, "."), "."); }

// Finds the branches that are models and optimizers, by the rules in torch_layout.h. Everything that the rules ask
// about a branch is computed once, bottom up (FactsOf); the rules then only walk.
class Finder {
 public:
  Finder(const TorchNode& root, const TorchLeafTypes& tensors, const std::vector<TensorRole>& roles)
      : root_(root), facts_(FactsOf("", root, tensors)), roles_(roles) {}

  // Optimizers first: they are recognised by their form alone, and their presence decides which rule finds the model.
  absl::StatusOr<TorchLayout> Find() {
    FSDP_RETURN_IF_ERROR(TakeRoles());
    if (!IsGiven(TensorRole::Section::kOptim)) FindOptimizers(facts_, {});
    if (!IsGiven(TensorRole::Section::kModel)) {
      FSDP_RETURN_IF_ERROR(FindModels());
      SetPrefixes();
    }
    layout_.models = static_cast<int>(models_.size());
    Describe();
    return std::move(layout_);
  }

 private:
  bool IsGiven(TensorRole::Section section) const {
    return std::any_of(roles_.begin(), roles_.end(), [&](const TensorRole& role) { return role.section == section; });
  }

  // The branch of the layout at `path`, which is made with all above it.
  TorchBranch& At(const Path& path) {
    TorchBranch* branch = &layout_.root;
    for (const std::string& key : path) {
      std::unique_ptr<TorchBranch>& member = branch->members[key];
      if (member == nullptr) member = std::make_unique<TorchBranch>();
      branch = member.get();
    }
    return *branch;
  }

  // True if the caller gave this branch, or one above it, a role.
  bool IsTaken(const Path& path) const {
    const TorchBranch* branch = &layout_.root;
    if (branch->role != Role::kNone) return true;
    for (const std::string& key : path) {
      branch = branch->Find(key);
      if (branch == nullptr) return false;
      if (branch->role != Role::kNone) return true;
    }
    return false;
  }

  // Keys may hold dots, so the text of a path is followed from key to key, longest first.
  static bool FindPath(const TorchNode& node, std::string_view text, Path& path) {
    if (text.empty()) return true;
    for (size_t end = text.size(); end != text.npos && end > 0; end = text.rfind('.', end - 1)) {
      const std::string key(text.substr(0, end));
      const TorchNode* const member = node.Find(key);
      if (member == nullptr) continue;
      path.push_back(key);
      if (FindPath(*member, end == text.size() ? "" : text.substr(end + 1), path)) return true;
      path.pop_back();
    }
    return false;
  }

  static std::string TopKeys(const TorchNode& root) {
    constexpr size_t kMost = 8;
    std::vector<std::string> keys;
    for (const auto& [key, member] : root.members()) {
      if (keys.size() < kMost) keys.push_back(Quote(key));
    }
    if (root.members().size() > kMost) keys.push_back("...");
    return absl::StrJoin(keys, ", ");
  }

  absl::Status TakeRoles() {
    for (const TensorRole& role : roles_) {
      Path path;
      if (role.branch != "." && !FindPath(root_, role.branch, path)) {
        return absl::InvalidArgumentError(absl::StrCat("TensorSourceOptions::map has ", Quote(role.branch),
                                                       ", and there is no such branch: at the top are ",
                                                       TopKeys(root_)));
      }
      const TorchNode* node = &root_;
      for (const std::string& key : path) node = node->Find(key);
      TorchBranch& branch = At(path);
      switch (role.section) {
        case TensorRole::Section::kExtra:
          branch.role = Role::kExtra;
          continue;
        case TensorRole::Section::kModel:
          branch.role = Role::kModel;
          models_.push_back({path});
          break;
        case TensorRole::Section::kOptim:
          if (OptimizerMembers(*node).form() == OptimizerMembers::Form::kNone) {
            return absl::InvalidArgumentError(
                absl::StrCat("TensorSourceOptions::map makes ", Quote(role.branch),
                             " an optimizer, which has \"state\" and \"param_groups\": it has ", TopKeys(*node)));
          }
          branch.is_optimizer = true;
          optimizers_.push_back(path);
          break;
      }
      branch.prefix = role.prefix;
    }
    return absl::OkStatus();
  }

  void FindOptimizers(const BranchFacts& facts, const Path& path) {
    if (!facts.has_optimizer || IsTaken(path)) return;
    if (facts.is_optimizer) {
      At(path).is_optimizer = true;
      optimizers_.push_back(path);
    }
    for (const BranchFacts& branch : facts.branches) FindOptimizers(branch, Longer(path, branch.key));
  }

  void Choose(Choice choice) {
    At(choice.path).role = choice.is_top ? Role::kTopModel : Role::kModel;
    models_.push_back(std::move(choice));
  }

  // A usual name nearest to the top wins; two in one dict are refused, since either could be meant.
  absl::Status FindModels() {
    std::vector<Choice> usual;
    FindUsual(facts_, {}, usual);
    size_t least = kMaxTorchDepth;
    for (const Choice& choice : usual) least = std::min(least, choice.path.size());
    std::map<Path, std::string> chosen;  // the key, by the path of the dict
    for (const Choice& choice : usual) {
      if (choice.path.size() != least) continue;
      const Path above(choice.path.begin(), choice.path.end() - 1);
      const auto [other, is_new] = chosen.try_emplace(above, choice.path.back());
      if (!is_new) return TwoModels(above, other->second, choice.path.back());
      Choose(choice);
    }
    if (!models_.empty()) {
      FindNamesakes(facts_, {});
      return absl::OkStatus();
    }
    if (!facts_.has_optimizer) {
      if (facts_.has_floats || (facts_.has_tensor && !HoldsValues(root_))) ChooseAll();
      return absl::OkStatus();
    }
    CollectNames(facts_);
    for (const bool by_name : {true, false}) {
      if (models_.empty()) FindWeights(facts_, {}, by_name);
    }
    return absl::OkStatus();
  }

  // A dict of a usual name, in `facts` or in a dict that has the model and the optimizer, or only the model, inside.
  void FindUsual(const BranchFacts& facts, const Path& path, std::vector<Choice>& usual) const {
    const bool all_wrap = std::all_of(facts.branches.begin(), facts.branches.end(), [](const BranchFacts& branch) {
      return !branch.has_weights || branch.has_usual_model;
    });
    for (const BranchFacts& branch : facts.branches) {
      const Path inner = Longer(path, branch.key);
      if (IsTaken(inner) || !branch.is_dict) continue;
      if (IsUsualModelName(branch.key) && branch.has_tensor && !branch.has_optimizer) {
        usual.push_back({inner});
      } else if (branch.has_usual_model && (branch.has_optimizer || all_wrap)) {
        FindUsual(branch, inner, usual);
      }
    }
  }

  // Next to a model of a usual name: dicts of weights that have an optimizer, by its name.
  void FindNamesakes(const BranchFacts& facts, const Path& path) {
    for (const BranchFacts& branch : facts.branches) {
      const Path inner = Longer(path, branch.key);
      if (IsTaken(inner)) continue;
      if (branch.has_optimizer) {
        if (!branch.is_optimizer) FindNamesakes(branch, inner);
        continue;
      }
      const bool has_one = std::any_of(facts.branches.begin(), facts.branches.end(), [&](const BranchFacts& other) {
        return other.is_optimizer && ShareAWord(other.key, branch.key);
      });
      if (has_one && branch.is_dict && branch.has_weights && !IsMomentName(branch.key)) Choose({inner});
    }
  }

  static absl::Status TwoModels(const Path& above, const std::string& a, const std::string& b) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has both ", Quote(a), " and ", Quote(b),
        ", and only one of them can be meant: TensorSourceOptions::map=", PrefixOf(above), b, "=extra leaves one out"));
  }

  static bool HoldsValues(const TorchNode& node) {
    return std::any_of(node.members().begin(), node.members().end(), [](const TorchNode::Member& member) {
      return member.second.kind() == Kind::kValue || HoldsValues(member.second);
    });
  }

  // Rule 5: no optimizer tells what a parameter is.
  void ChooseAll() {
    for (const BranchFacts& branch : facts_.branches) {
      const bool is_model = !facts_.has_floats || (branch.has_floats && !IsMomentName(branch.key));
      const Path path = Longer({}, branch.key);
      if (!is_model) At(path).role = Role::kExtra;
    }
    Choose({});
  }

  // A name that each optimizer knows.
  void CollectNames(const BranchFacts& facts) {
    if (facts.is_optimizer) {
      const std::string name = OptimizerMembers(*facts.node).a_parameter();
      if (!name.empty()) names_.push_back(name);
    }
    for (const BranchFacts& branch : facts.branches) CollectNames(branch);
  }

  // A dict with a parameter that an optimizer has state of is that optimizer's model, whatever it is called.
  bool Knows(const TorchNode& node) const {
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
      const TorchNode* const member = node.Find(name);
      return member != nullptr && member->kind() == Kind::kTensor;
    });
  }

  // Rule 4, in each dict with an optimizer inside, and in lists. `by_name`: only those whose names are names of
  // parameters.
  void FindWeights(const BranchFacts& facts, const Path& path, bool by_name) {
    if (IsTaken(path)) return;
    const bool is_top =
        by_name ? facts.has_direct_weights || (facts.has_direct_floats && Knows(*facts.node)) : facts.has_direct_floats;
    for (const BranchFacts& branch : facts.branches) {
      const Path inner = Longer(path, branch.key);
      if (branch.has_optimizer || !branch.is_dict) {
        FindWeights(branch, inner, by_name);
      } else if (!is_top && branch.is_dict && !IsMomentName(branch.key) && !IsTaken(inner) &&
                 (by_name ? branch.has_weights || Knows(*branch.node) : branch.has_floats)) {
        Choose({inner});
      }
    }
    if (is_top) Choose({path, true});
  }

  // Usual names are left out; so is what all models have in common. If two would become one, the whole paths stay.
  void SetPrefixes() {
    std::vector<Path> paths;
    size_t common = models_.size() > 1 ? kMaxTorchDepth : 0;
    for (const Choice& model : models_) {
      size_t equal = 0;
      while (equal < std::min(model.path.size(), models_[0].path.size()) && model.path[equal] == models_[0].path[equal])
        ++equal;
      common = std::min(common, equal);
    }
    for (const Choice& model : models_) {
      Path& path = paths.emplace_back(model.path);
      if (models_.size() == 1) {
        if (model.is_usual()) path.clear();
        continue;
      }
      path.erase(path.begin(), path.begin() + static_cast<int64_t>(common));
      if (!path.empty() && IsUsualModelName(path.back())) path.pop_back();
    }
    std::vector<Path> sorted = paths;
    std::sort(sorted.begin(), sorted.end());
    const bool is_unique = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    for (size_t i = 0; i < models_.size(); ++i) {
      At(models_[i].path).prefix = PrefixOf(is_unique ? paths[i] : models_[i].path);
    }
  }

  // The first few of `names`, since a file may have many.
  static std::string Listed(std::vector<std::string> names) {
    constexpr size_t kMost = 4;
    const size_t others = names.size() > kMost + 1 ? names.size() - kMost : 0;
    if (others > 0) names.resize(kMost);
    return absl::StrCat(absl::StrJoin(names, ", "), others > 0 ? absl::StrCat(" and ", others, " more") : "");
  }

  void Describe() {
    std::vector<std::string> models;
    for (const Choice& model : models_) {
      const std::string& prefix = At(model.path).prefix;
      const std::string names = prefix.empty() ? "" : absl::StrCat(" as ", Quote(absl::StrCat(prefix, "*")));
      models.push_back(absl::StrCat(model.ToString(), names));
    }
    std::vector<std::string> optimizers;
    for (const Path& path : optimizers_) optimizers.push_back(path.empty() ? "the top" : Choice{path}.ToString());
    layout_.description.text =
        absl::StrCat(models.empty() ? "no model" : absl::StrCat("model from ", Listed(models)),
                     optimizers.empty() ? "" : absl::StrCat(", optimizer from ", Listed(optimizers)));
    std::vector<std::string> others;
    FindOtherWeights(facts_, {}, others);
    if (!others.empty()) {
      layout_.description.notes.push_back(absl::StrCat(Listed(others),
                                                       others.size() == 1
                                                           ? " looks like a model too, and became an extra value: "
                                                           : " look like models too, and became extra values: ",
                                                       "TensorSourceOptions::map=BRANCH=model takes one"));
    }
    layout_.description.is_usual = IsUsual() && others.empty();
  }

  bool IsUsual() const {
    const bool whole = models_.size() == 1 && models_[0].path.empty() && !models_[0].is_top &&
                       layout_.root.members.empty() && optimizers_.empty();
    const bool usual_model = models_.size() == 1 && models_[0].path.size() == 1 && models_[0].is_usual();
    const bool usual_optimizer = optimizers_.empty() || (optimizers_.size() == 1 && optimizers_[0].size() == 1 &&
                                                         IsUsualOptimizerName(optimizers_[0][0]));
    return roles_.empty() && (whole || (usual_model && usual_optimizer));
  }

  // Dicts of weights that were not chosen, unless the caller made them extra values.
  void FindOtherWeights(const BranchFacts& facts, const Path& path, std::vector<std::string>& others) const {
    const TorchBranch* at = &layout_.root;
    for (const std::string& key : path) at = at == nullptr ? nullptr : at->Find(key);
    if (at != nullptr && (at->role == Role::kModel || at->role == Role::kExtra)) return;
    for (const BranchFacts& branch : facts.branches) {
      const Path inner = Longer(path, branch.key);
      const TorchBranch* const chosen = at == nullptr ? nullptr : at->Find(inner.back());
      if (chosen != nullptr || branch.has_optimizer) {
        FindOtherWeights(branch, inner, others);
      } else if (branch.is_dict && branch.has_weights && !IsMomentName(branch.key)) {
        others.push_back(Quote(absl::StrJoin(inner, ".")));
      }
    }
  }

  const TorchNode& root_;
  const BranchFacts facts_;
  const std::vector<TensorRole>& roles_;
  TorchLayout layout_;
  std::vector<Choice> models_;
  std::vector<Path> optimizers_;
  std::vector<std::string> names_;  // of parameters, which optimizers know
};

}  // namespace

const TorchBranch* TorchBranch::Find(const std::string& key) const {
  const auto at = members.find(key);
  return at == members.end() ? nullptr : at->second.get();
}

absl::StatusOr<TorchLayout> LayoutOf(const TorchNode& root, const TorchLeafTypes& tensors,
                                     const std::vector<TensorRole>& roles) {
  return Finder(root, tensors, roles).Find();
}

}  // namespace fsdp
