// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/without_value.h"

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {

StateDict WithoutValue(const StateKey& key, const StateDict& state) {
  StateDict rest;
  rest.Reserve(state.entries().size());
  for (const auto& [kept, value] : state.entries()) {
    if (!(kept == key)) rest.Set(kept, value);
  }
  rest.type = state.type;
  rest.aliases = state.aliases;
  rest.units = state.units;
  rest.attributes = state.attributes;
  return rest;
}

std::vector<std::string> LeaveOutUnstorableNames(StateDict& state) {
  std::vector<StateKey> unstorable;
  for (const auto& [key, value] : state.entries()) {
    const bool has_fault = key.fqn.empty() || key.fqn.find('\0') != key.fqn.npos;
    if (key.section == StateKey::Section::kExtra && has_fault) unstorable.push_back(key);
  }
  std::vector<std::string> notes;
  for (const StateKey& key : unstorable) {
    const absl::Status reason = CheckTensorName(key.fqn);
    notes.push_back(absl::StrCat("an extra value is left out: ", std::string(reason.message())));
    state = WithoutValue(key, state);
  }
  return notes;
}

}  // namespace fsdp
