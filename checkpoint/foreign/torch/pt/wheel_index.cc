// SPDX-License-Identifier: Apache-2.0
//
// DCP flattens a state dict: {"scheduler": {"last_epoch": 1}} is the value "scheduler.last_epoch", and the index has
// the path. The main model and optimizer have names of their own here, which the writers nest again; the other branches
// of the program's state dict become dicts and lists whose values are references (extra_parts.h).
#include "fsdp/checkpoint/foreign/torch/pt/wheel_index.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/source/without_value.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// The members of the index, by DCP's names: [kind, name of ours, path, ...]. Null for any other text of that name.
PythonJson KeysOf(const std::string& text) {
  PythonJson index = ParsePythonJson(text);
  const bool is_index = index.is_object() && index.contains("version") && index.contains("keys");
  return is_index && index["keys"].is_object() ? std::move(index["keys"]) : PythonJson();
}

// A dict or a list of a branch, in the program's order, or a value.
class Branch {
 public:
  // The member `key`, a text or an integer; made if it is missing.
  Branch& At(const PythonJson& key) {
    const auto [place, is_new] = places_.try_emplace(key.dump(), members_.size());
    if (is_new) members_.emplace_back(key, std::make_unique<Branch>());
    return *members_[place->second].second;
  }

  bool is_empty() const { return members_.empty() && !part_; }
  bool is_value() const { return part_.has_value(); }
  void Become(std::string part) { part_ = std::move(part); }
  const std::vector<std::pair<PythonJson, std::unique_ptr<Branch>>>& members() const { return members_; }

  // With integers from 0 on it is a list: DCP makes texts of the integers that are keys of a dict.
  PythonJson ToPython() const {
    if (part_) return PythonJson::parse(ReferenceText(*part_));
    bool is_dict = true, is_list = true;
    for (size_t i = 0; i < members_.size(); ++i) {
      is_dict = is_dict && members_[i].first.is_string() && members_[i].first != kPythonTag;
      is_list = is_list && members_[i].first == i;
    }
    PythonJson json = is_dict ? PythonJson::object() : PythonJson::array();
    for (const auto& [key, member] : members_) {
      PythonJson value = member->ToPython();
      if (is_dict) {
        AppendMember(json, key, std::move(value));
      } else {
        json.push_back(is_list ? std::move(value) : PythonJson::array({key, std::move(value)}));
      }
    }
    return is_dict || is_list ? json : PythonJson({{kPythonTag, "dict"}, {"items", std::move(json)}});
  }

 private:
  std::optional<std::string> part_;  // the name of the extra value
  std::vector<std::pair<PythonJson, std::unique_ptr<Branch>>> members_;
  absl::flat_hash_map<std::string, size_t> places_;
};

// The path of an index's entry to an extra value of `state` that is one by the name that DCP gives it, and is in a dict
// or a list; null for all others. A text that refers to others cannot be referred to.
PythonJson PathToExtra(const std::string& name, const PythonJson& entry, const StateDict& state) {
  constexpr size_t kMostKeys = kMaxPythonDepth / 3;
  const bool is_entry = entry.is_array() && entry.size() == 3 && entry[1] == absl::StrCat("extra/", name) &&
                        entry[2].is_array() && entry[2].size() > 1 && entry[2].size() <= kMostKeys;
  if (!is_entry || !entry[2][0].is_string() || !state.contains(StateKey::Extra(name))) return {};
  const bool is_path = std::all_of(entry[2].begin(), entry[2].end(),
                                   [](const PythonJson& key) { return key.is_string() || key.is_number_unsigned(); });
  const std::string* const text = state.FindText(StateKey::Extra(name));
  const bool has_references = text != nullptr && text->find(kReferenceTag) != std::string::npos;
  return is_path && !has_references ? entry[2] : PythonJson();
}

// A branch that the index contradicts, or whose name is taken, stays flattened.
void NestBranches(const PythonJson& keys, StateDict& state) {
  Branch root;
  std::set<std::string> refused;
  for (const auto& [name, entry] : keys.items()) {
    const PythonJson path = PathToExtra(name, entry, state);
    if (path.is_null()) continue;
    Branch* branch = &root;
    bool is_free = true;
    for (const PythonJson& key : path) {
      branch = &branch->At(key);
      is_free = is_free && !branch->is_value();
    }
    if (is_free && branch->is_empty()) {
      branch->Become(name);
    } else {
      refused.insert(path[0].get<std::string>());
    }
  }
  for (const auto& [key, branch] : root.members()) {
    const StateKey whole = StateKey::Extra(key.get<std::string>());
    if (refused.count(whole.fqn) == 0 && !state.contains(whole)) state.Set(whole, TextOfPython(branch->ToPython()));
  }
}

}  // namespace

std::vector<std::string> TakeWheelIndex(StateDict& state) {
  const StateKey key = StateKey::Extra("torch.distributed.checkpoint");
  const std::string* const text = state.FindText(key);
  if (text == nullptr) return {};
  const PythonJson keys = KeysOf(*text);
  if (keys.is_null()) return {};
  std::vector<std::string> notes;
  for (const auto& [name, value] : keys.items()) {
    if (!value.is_array() || value.empty() || value[0] != "torch.save") continue;
    notes.push_back(
        absl::StrCat(Quote(name), " is written as the bytes of a pickle, a uint8 tensor, since the program ",
                     "saved an object that is no plain value: torch.load(io.BytesIO(bytes(tensor.numpy())))"));
  }
  state = WithoutValue(key, state);
  NestBranches(keys, state);
  return notes;
}

}  // namespace fsdp
