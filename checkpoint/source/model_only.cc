// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/model_only.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/weight_files.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// "12 optimizer values are left out: ..." for each part of `state` that the format cannot hold.
std::vector<std::string> NotesOn(const FormatTraits& traits, const StateDict& state) {
  int64_t optimizer = 0;
  int64_t extra = 0;
  std::vector<std::string> of_model;
  for (const auto& [key, value] : state.entries()) {
    if (std::optional<std::string> name = NameOfModelValue(key)) {
      of_model.push_back(*std::move(name));
      continue;
    }
    if (key.section == Section::kOptimState || key.section == Section::kParamGroups) ++optimizer;
    // The metadata's text is not counted: FitModelOnly reports metadata separately.
    if (key.section == Section::kExtra && key != SafetensorsMetadataKey()) ++extra;
  }
  std::vector<std::string> notes;
  const auto add = [&](int64_t count, const char* what) {
    if (count == 0) return;
    notes.push_back(absl::StrCat(count, what, count == 1 ? " value is" : " values are",
                                 " left out: ", std::string(traits.name), " holds the model only"));
  };
  add(optimizer, " optimizer");
  add(extra, " extra");
  if (!of_model.empty()) {
    notes.push_back(absl::StrCat("left out of the model, because ", std::string(traits.name),
                                 " holds tensors only: ", SomeOf(of_model)));
  }
  // Formats without aliases keep the tensor under its own name; a loader that ties weights restores the other name.
  for (const auto& [alias, target] : state.aliases) {
    notes.push_back(absl::StrCat(Quote(alias), " is left out: it is ", Quote(target), " under another name"));
  }
  return notes;
}

bool IsModelTensor(const StateDict::Entry& entry) {
  return entry.first.section == Section::kModel && std::holds_alternative<ShardedTensor>(entry.second);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FitModelOnly(const FormatTraits& traits, FormatContents& contents) {
  std::vector<std::string> notes = NotesOn(traits, contents.state);
  if (!traits.keeps_metadata) {
    StateDict kept;
    KeepSafetensorsMetadata(contents.metadata, kept);
    if (!kept.empty())
      notes.push_back(absl::StrCat("__metadata__ is left out: ", std::string(traits.name), " has no place for it"));
  }
  const auto& entries = contents.state.entries();
  const auto models = std::count_if(entries.begin(), entries.end(), IsModelTensor);
  // An empty source is left to the writer, which decides whether a file without tensors is valid.
  if (models == 0 && !entries.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the source holds no model tensor, and ", std::string(traits.name), " holds the model only"));
  }
  if (models == std::ssize(entries)) return notes;  // avoids copying a large state dict
  StateDict model;
  for (const StateDict::Entry& entry : entries) {
    if (IsModelTensor(entry)) model.Set(entry.first, entry.second);
  }
  contents.state = std::move(model);
  return notes;
}

}  // namespace fsdp
