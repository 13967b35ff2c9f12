// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/branch_facts.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

bool IsParameterName(const std::string& name) {
  return absl::StrContains(name, '.') || name == "weight" || name == "bias";
}

void AddTensor(const std::string& name, const TorchLeafType& type, BranchFacts& facts) {
  facts.has_tensor = true;
  const bool is_float = IsFloatingPoint(PartOf(type.dtype)) && type.shape.rank() > 0;
  facts.has_floats = facts.has_floats || is_float;
  if (!facts.is_dict) return;
  facts.has_direct_floats = facts.has_direct_floats || is_float;
  facts.has_direct_weights = facts.has_direct_weights || (is_float && IsParameterName(name));
}

void AddBranch(BranchFacts branch, BranchFacts& facts) {
  facts.has_tensor = facts.has_tensor || branch.has_tensor;
  facts.has_optimizer = facts.has_optimizer || branch.has_optimizer;
  facts.has_floats = facts.has_floats || branch.has_floats;
  const bool is_usual = IsUsualModelName(branch.key) && branch.has_tensor && branch.is_dict;
  facts.has_usual_model = facts.has_usual_model || branch.has_usual_model || is_usual;
  // Names in a dict inside this one have a dot between the two.
  facts.has_weights = facts.has_weights || (branch.is_dict && (branch.has_weights || branch.has_direct_floats));
  if (branch.has_tensor || branch.has_optimizer) facts.branches.push_back(std::move(branch));
}

// The words of a name in lower case, cut at capitals and at what is neither letter nor digit, without the words that
// say only what it is: "optimizer_G" has "g", "netDisc" has "disc".
std::vector<std::string> WordsOf(std::string_view name) {
  static constexpr std::array kCommon = {"optim", "optimizer", "optimizers", "opt",     "state",
                                         "dict",  "model",     "net",        "network", "module"};
  std::vector<std::string> words(1);
  for (const char c : name) {
    const bool is_part = absl::ascii_isalnum(c);
    if ((!is_part || absl::ascii_isupper(c)) && !words.back().empty()) words.emplace_back();
    if (is_part) words.back().push_back(absl::ascii_tolower(c));
  }
  const auto is_common = [](const std::string& word) {
    return word.empty() || std::find(kCommon.begin(), kCommon.end(), word) != kCommon.end();
  };
  words.erase(std::remove_if(words.begin(), words.end(), is_common), words.end());
  return words;
}

}  // namespace

BranchFacts FactsOf(std::string_view key, const TorchNode& node, const TorchLeafTypes& tensors) {
  const OptimizerMembers own(node);
  BranchFacts facts;
  facts.key = key;
  facts.node = &node;
  facts.is_optimizer = own.form() != OptimizerMembers::Form::kNone;
  facts.has_optimizer = facts.is_optimizer;
  facts.is_dict = node.is_branch() && !node.is_list;
  for (const auto& [name, member] : node.members()) {
    if (own.Has(name)) continue;
    if (member.kind() == Kind::kTensor) {
      AddTensor(name, tensors[member.tensor()], facts);
    } else {
      AddBranch(FactsOf(name, member, tensors), facts);
    }
  }
  facts.has_weights = facts.has_weights || facts.has_direct_weights;
  return facts;
}

bool ShareAWord(std::string_view optimizer, std::string_view model) {
  for (const std::string& a : WordsOf(optimizer)) {
    for (const std::string& b : WordsOf(model)) {
      if (absl::StartsWith(a, b) || absl::StartsWith(b, a)) return true;
    }
  }
  return false;
}

bool SaysOnlyWhatItIs(std::string_view name) { return WordsOf(name).empty(); }

bool IsUsualModelName(std::string_view key) {
  static constexpr std::array kNames = {"model", "state_dict", "module", "model_state_dict"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

}  // namespace fsdp
