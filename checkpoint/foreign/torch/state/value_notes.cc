// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/value_notes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/numpy_value.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"

namespace fsdp {
namespace {

bool HasTag(const PythonJson& json, const char* wanted) {
  const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
  return json.is_object() && tag != json.end() && *tag == wanted;
}

bool HoldsFrozenSet(const PythonJson& json) {
  return HasTag(json, "frozenset") || (json.is_structured() && std::any_of(json.begin(), json.end(), HoldsFrozenSet));
}

bool HoldsNumpy(const PythonJson& json) {
  return HasTag(json, kNumpyTag) || (json.is_structured() && std::any_of(json.begin(), json.end(), HoldsNumpy));
}

bool HoldsDividedDict(const PythonJson& json) {
  const bool is_tagged = HasTag(json, "dict") || HasTag(json, "OrderedDict") || HasTag(json, "Counter");
  if (is_tagged && HoldsReference(json)) return true;
  return json.is_structured() && std::any_of(json.begin(), json.end(), HoldsDividedDict);
}

// A note for each extra value whose text has `word` and whose value has `is_noted`: most texts are not parsed.
std::vector<std::string> Notes(const StateDict& contents, const std::string& word, bool (*is_noted)(const PythonJson&),
                               const std::string& note) {
  std::vector<std::string> notes;
  for (const auto& [key, value] : contents.entries()) {
    const auto* const text = std::get_if<std::string>(&value);
    if (key.section != StateKey::Section::kExtra || text == nullptr || text->find(word) == text->npos) continue;
    if (is_noted(PythonOfText(*text))) notes.push_back(absl::StrCat("extra value ", Quote(key.fqn), " ", note));
  }
  return notes;
}

}  // namespace

std::vector<std::string> NotesForTorchLoad(const StateDict& contents) {
  const std::string only = ", which torch.load takes only with weights_only=False";
  std::vector<std::string> notes = Notes(contents, "frozenset", &HoldsFrozenSet, "holds a frozenset" + only);
  for (std::string& note : Notes(contents, kNumpyTag, &HoldsNumpy, "holds a number or array of numpy" + only)) {
    notes.push_back(std::move(note));
  }
  return notes;
}

std::vector<std::string> NotesOnBranchKeys(const StateDict& contents) {
  const BranchKeys keys = BranchKeysOf(contents);
  std::vector<std::string> notes;
  const auto note = [&](const char* usual, const std::string& key) {
    if (key == usual) return;
    notes.push_back(
        absl::StrCat("the ", usual, " is written as ", Quote(key), ": an extra value is named ", Quote(usual)));
  };
  if (HoldsModel(contents)) note("model", keys.model);
  if (HoldsOptimizer(contents)) note("optim", keys.optim);
  return notes;
}

std::vector<std::string> NotesForDcp(const StateDict& contents) {
  return Notes(
      contents, kReferenceTag, &HoldsDividedDict,
      "has a dict of tensors that becomes a plain dict with strings for keys: DCP keeps neither OrderedDict nor "
      "other keys");
}

}  // namespace fsdp
