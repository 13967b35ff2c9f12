// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr char kState[] = "state";
constexpr char kGroups[] = "param_groups";

// A flattened name: "state" or "param_groups", a parameter, and a name without a dot.
struct FlattenedName {
  bool is_state = false;
  std::string_view parameter;  // empty: the name is no flattened one
  std::string_view member;
};

FlattenedName SplitFlattened(std::string_view name) {
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  if (first == name.npos || last == first) return {};
  const std::string_view head = name.substr(0, first);
  if (head != kState && head != kGroups) return {};
  return {head == kState, name.substr(first + 1, last - first - 1), name.substr(last + 1)};
}

bool HasKey(const TorchNode& node, const char* key) {
  if (node.is_branch()) return node.Find(key) != nullptr;
  return node.kind() == Kind::kValue && node.value().is_object() && node.value().contains(key);
}

// A dict without a tensor, such as the flattened optimizer of SGD without momentum, is a value.
template <typename Use>
void ForEachName(const TorchNode& node, const Use& use) {
  for (const auto& [name, member] : node.members()) use(name);
  if (node.kind() != Kind::kValue) return;
  for (const auto& [name, member] : node.value().items()) use(name);
}

size_t SizeOfDict(const TorchNode& node) { return node.is_branch() ? node.members().size() : node.value().size(); }

// True for the state of parameters without their groups: {"a.weight": {"exp_avg": a tensor}}.
bool HoldsMoments(const TorchNode* state) {
  if (state == nullptr || !state->is_branch() || state->members().empty()) return false;
  const TorchNode& first = state->members()[0].second;
  return std::any_of(first.members().begin(), first.members().end(), [](const TorchNode::Member& member) {
    return member.second.kind() == Kind::kTensor && IsMomentName(member.first);
  });
}

bool IsNested(const TorchNode& node) {
  if (!HasKey(node, kGroups)) return node.is_branch() && !node.is_list && HoldsMoments(node.Find(kState));
  // DCP does not store an empty dict, such as the state of SGD without momentum.
  return HasKey(node, kState) || SizeOfDict(node) == 1;
}

}  // namespace

// Only the keys are looked at, and nothing is expanded: this is asked of every dict of a file.
OptimizerMembers::OptimizerMembers(const TorchNode& node) {
  const bool is_value = node.kind() == Kind::kValue && node.value().is_object() && !node.value().contains(kPythonTag);
  if (node.is_list || (!node.is_branch() && !is_value)) return;
  if (IsNested(node)) {
    FindNested(node);
  } else {
    FindFlattened(node);
  }
}

void OptimizerMembers::FindNested(const TorchNode& node) {
  form_ = Form::kNested;
  have_others_ = SizeOfDict(node) > static_cast<size_t>(HasKey(node, kState)) + HasKey(node, kGroups);
  const TorchNode* const state = node.Find(kState);
  if (state == nullptr || state->members().empty()) return;
  const std::string& name = state->members()[0].first;
  const bool is_id = std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
  if (!is_id) a_parameter_ = name;
}

// A module may be named "state", so state counts only if its parameter has options, or a moment.
void OptimizerMembers::FindFlattened(const TorchNode& node) {
  ForEachName(node, [&](const std::string& name) {
    const FlattenedName split = SplitFlattened(name);
    if (split.parameter.empty() || (split.is_state && !IsMomentName(split.member))) return;
    if (a_parameter_.empty()) a_parameter_ = std::string(split.parameter);
    parameters_.emplace(split.parameter);
  });
  if (parameters_.empty()) return;
  form_ = Form::kFlattened;
  ForEachName(node, [&](const std::string& name) { have_others_ = have_others_ || !Has(name); });
}

bool OptimizerMembers::Has(const std::string& name) const {
  switch (form_) {
    case Form::kNone:
      return false;
    case Form::kNested:
      return name == kState || name == kGroups;
    case Form::kFlattened:
      break;
  }
  const std::string_view parameter = SplitFlattened(name).parameter;
  return parameters_.contains(absl::string_view(parameter.data(), parameter.size()));
}

bool IsMomentName(std::string_view state) {
  // Of torch.optim, and of the libraries whose optimizers keep AdamW's or SGD's names for what they add.
  static constexpr std::array kNames = {"exp_avg",      "exp_avg_sq",      "max_exp_avg_sq", "exp_inf",
                                        "exp_avg_diff", "momentum_buffer", "square_avg",     "acc_delta",
                                        "grad_avg",     "neg_pre_grad",    "hessian"};
  return std::find(kNames.begin(), kNames.end(), state) != kNames.end();
}

// The reverse of StateDictOptions.flatten_optimizer_state_dict. Parameters with equal options are one group, in the
// order of their first parameters: the file no longer says how they were grouped.
absl::StatusOr<TorchNode> Unflattened(TorchNode flat, const TorchLeafTypes& tensors, const TorchTensorReader& read) {
  TorchNode state;
  std::vector<std::pair<std::string, PythonJson>> options;  // by parameter
  std::map<std::string, size_t> index;
  const auto add = [&](const std::string& name, TorchNode& member) -> absl::Status {
    const FlattenedName split = SplitFlattened(name);
    if (split.parameter.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state ", Quote(name), " names no parameter"));
    }
    const std::string fqn(split.parameter);
    const std::string member_name(split.member);
    if (split.is_state) {
      TorchNode* parameter = state.Find(fqn);
      if (parameter == nullptr) parameter = state.Add(fqn, TorchNode());
      parameter->Add(member_name, std::move(member));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(PythonJson value, member.ToJson(tensors, read));
    const auto [at, is_new] = index.try_emplace(fqn, options.size());
    if (is_new) options.emplace_back(fqn, PythonJson::object());
    options[at->second].second[member_name] = std::move(value);
    return absl::OkStatus();
  };
  FSDP_RETURN_IF_ERROR(flat.Consume(add));
  // Each group's options without "params", and its parameters.
  std::vector<std::pair<PythonJson, PythonJson>> of_groups;
  for (auto& [fqn, of_parameter] : options) {
    // Moved out of the pair's binding, which clang 14 does not let a lambda capture.
    PythonJson values = std::exchange(of_parameter, PythonJson());
    auto same =
        std::find_if(of_groups.begin(), of_groups.end(), [&](const auto& group) { return group.first == values; });
    if (same == of_groups.end()) same = of_groups.emplace(same, std::move(values), PythonJson::array());
    same->second.push_back(fqn);
  }
  PythonJson groups = PythonJson::array();
  for (auto& [values, params] : of_groups) {
    values["params"] = std::move(params);
    groups.push_back(std::move(values));
  }
  TorchNode node;
  node.Add(kState, std::move(state));
  node.Add(kGroups, TorchNode::Value(std::move(groups)));
  return node;
}

}  // namespace fsdp
