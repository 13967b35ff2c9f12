// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/common_encoding.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/common_values.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/optimizer_value.h"

namespace fsdp {
namespace {

constexpr double kCheckpointVersion = 3;
constexpr char kVersion[] = "checkpoint_version";
constexpr char kIteration[] = "iteration";
constexpr char kDecay[] = "wd_mult";

// By which Megatron-Core finds the group of a checkpoint for one of its own: param_group_identifier_keys.
constexpr std::array<const char*, 4> kIdentifiers = {kDecay, "lr_mult", "is_expert_parallel", "is_decoupled_lr"};

PythonJson IdentityOf(const PythonJson& group) {
  PythonJson identity = PythonJson::array();
  for (const char* const name : kIdentifiers) identity.push_back(group.at(name));
  return identity;
}

// Gives `group` the identifiers that it lacks.
void Identify(PythonJson& group) {
  const auto decay = group.find("weight_decay");
  const bool decays = decay == group.end() || !decay->is_number() || decay->get<double>() != 0;
  const std::array<PythonJson, 4> values = {decays ? 1.0 : 0.0, 1.0, false, false};
  for (size_t i = 0; i < kIdentifiers.size(); ++i) {
    const std::string name = kIdentifiers[i];
    // NeMo renames two of them.
    const auto nemo = group.find(absl::StrCat("pre_", name));
    if (!group.contains(name)) group[name] = nemo == group.end() ? values[i] : PythonJson(*nemo);
  }
}

// A group of ours with the options that PyTorch's optimizers have. A learning rate or the like that was a tensor is the
// number that it is in ours: common.pt with tensors is not read.
absl::StatusOr<PythonJson> GroupOf(PythonJson group, const PythonJson& of_torch) {
  for (const char* const name : {"params", "param_names", kTensorsOfGroup}) group.erase(name);
  for (const auto& [name, value] : group.items()) {
    if (!TensorOfJson(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat("param_groups have a tensor, ", Quote(name),
                                                   ", that is no number: Megatron-Core has numbers there"));
  }
  for (const auto& [name, value] : of_torch.items()) {
    if (!group.contains(name) && name != "params" && name != "param_names") group[name] = value;
  }
  if (const auto betas = group.find("betas"); betas != group.end() && betas->is_array()) {
    *betas = PythonJson({{kPythonTag, "tuple"}, {"items", *betas}});
  }
  Identify(group);
  return group;
}

// The groups of `text`, param_groups of ours. Equal ones become one.
absl::StatusOr<PythonJson> GroupsOf(const std::string& text) {
  FSDP_ASSIGN_OR_RETURN(const PythonJson of_torch, TorchParamGroups(text));
  const PythonJson groups = ParsePythonJson(text);
  PythonJson kept = PythonJson::array();
  for (size_t i = 0; i < groups.size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(PythonJson group, GroupOf(groups[i], of_torch[i]));
    const auto same = std::find_if(kept.begin(), kept.end(),
                                   [&](const PythonJson& other) { return IdentityOf(other) == IdentityOf(group); });
    if (same == kept.end()) {
      kept.push_back(std::move(group));
    } else if (*same != group) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Megatron-Core cannot tell group ", i, " of param_groups from group ", std::distance(kept.begin(), same),
          ", whose options differ: both decay, or neither does; convert with --model_only"));
    }
  }
  return kept;
}

// `text` for kNamedGroups. Numbers stay numbers: the record of tensors restores them.
absl::StatusOr<PythonJson> NamedGroupsOf(const std::string& text) {
  FSDP_RETURN_IF_ERROR(TorchParamGroups(text).status());
  return ParsePythonJson(text);
}

// A group that does not decay for each that does, and the inverse.
void AddCounterparts(PythonJson& groups) {
  const PythonJson given = groups;
  for (PythonJson group : given) {
    const bool decays = !group[kDecay].is_number() || group[kDecay].get<double>() != 0;
    group[kDecay] = decays ? 0.0 : 1.0;
    if (decays && group.contains("weight_decay")) group["weight_decay"] = 0.0;
    const bool is_there = std::any_of(groups.begin(), groups.end(),
                                      [&](const PythonJson& other) { return IdentityOf(other) == IdentityOf(group); });
    if (!is_there) groups.push_back(std::move(group));
  }
}

// `text`: {"optimizer": {"param_groups": [...]}, ...}.
absl::StatusOr<PythonJson> OptimizerOfText(const std::string& text) {
  PythonJson optimizer = PythonOfText(text);
  if (optimizer.is_object() && optimizer.contains("optimizer")) {
    const PythonJson& inner = optimizer["optimizer"];
    if (inner.is_object() && inner.contains("param_groups") && inner["param_groups"].is_array()) return optimizer;
  }
  return absl::InvalidArgumentError(absl::StrCat("extra value \"", kOptimizerCommon,
                                                 "\" is not of one optimizer: which parameter each of several has "
                                                 "is not known; convert with --model_only"));
}

absl::StatusOr<PythonJson> NewOptimizer(const StateDict& contents) {
  PythonJson groups = PythonJson::array();
  if (const std::string* const text = contents.FindText(StateKey::ParamGroups())) {
    FSDP_ASSIGN_OR_RETURN(groups, GroupsOf(*text));
  } else {
    groups.push_back(PythonJson::object());
    Identify(groups[0]);
  }
  AddCounterparts(groups);
  PythonJson optimizer = PythonJson::object();
  optimizer["optimizer"]["param_groups"] = std::move(groups);
  return optimizer;
}

absl::StatusOr<PythonJson> OptimizerOf(const StateDict& contents, std::optional<double> step) {
  const std::string* const common = contents.FindText(StateKey::Extra(kOptimizerCommon));
  FSDP_ASSIGN_OR_RETURN(PythonJson optimizer, common != nullptr ? OptimizerOfText(*common) : NewOptimizer(contents));
  for (PythonJson& group : optimizer["optimizer"]["param_groups"]) {
    if (step && group.is_object()) group["step"] = *step;
  }
  optimizer["param_state_sharding_type"] = "fully_reshardable";
  return optimizer;
}

}  // namespace

absl::StatusOr<std::string> EncodeCommon(const StateDict& contents, const CommonOfRun& run) {
  PickleWriter pickle;
  pickle.EmptyDict();
  pickle.Mark();
  if (!contents.contains(StateKey::Extra(kVersion))) {
    pickle.String(kVersion);
    pickle.Float(kCheckpointVersion);
  }
  pickle.String(kIteration);
  pickle.Integer(run.iteration);
  for (const auto& [key, value] : contents.entries()) {
    const auto* const text = std::get_if<std::string>(&value);
    const bool is_written = key.fqn == kIteration || key.fqn == kOptimizerCommon;
    if (text == nullptr || key.section != StateKey::Section::kExtra || is_written || StateOfKey(key)) continue;
    if (key.fqn == "optimizer" || key.fqn == kNamedGroups) {
      return absl::InvalidArgumentError(absl::StrCat("extra value ", Quote(key.fqn),
                                                     " would be read as the optimizer's: give it another name with "
                                                     "--rename, or leave it out with --exclude"));
    }
    pickle.String(key.fqn);
    pickle.Python(PythonOfText(*text));
  }
  if (run.has_optimizer) {
    FSDP_ASSIGN_OR_RETURN(const PythonJson optimizer, OptimizerOf(contents, run.step));
    pickle.String("optimizer");
    pickle.Python(optimizer);
    if (const std::string* const text = contents.FindText(StateKey::ParamGroups())) {
      FSDP_ASSIGN_OR_RETURN(const PythonJson groups, NamedGroupsOf(*text));
      pickle.String(kNamedGroups);
      pickle.Python(groups);
    }
  }
  pickle.SetItems();
  return std::move(pickle).Finish();
}

}  // namespace fsdp
