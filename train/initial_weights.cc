// SPDX-License-Identifier: Apache-2.0
//
// A model is published under one of two spellings of its names: as the whole model ("transformer.wte.weight" and
// "lm_head.weight") or as the base model ("wte.weight", no head). The wanted state always has the first spelling. So
// the file is described first, without reading values, and the wanted state is renamed if no name in the file has the
// prefix.
#include "fsdp/train/initial_weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/collectives/group/same_on_ranks.h"

namespace fsdp {
namespace {

// `state` under the names without `prefix`; the tensors share their memory with `state`.
StateDict WithoutPrefix(const StateDict& state, std::string_view prefix) {
  StateDict renamed;
  renamed.type = state.type;
  for (const auto& [key, value] : state.entries()) {
    renamed.Set(StateKey::Model(std::string(absl::StripPrefix(key.fqn, std::string(prefix)))), value);
  }
  return renamed;
}

bool AnyHasPrefix(const StateDict& state, std::string_view prefix) {
  const auto& entries = state.entries();
  return std::any_of(entries.begin(), entries.end(),
                     [prefix](const auto& entry) { return absl::StartsWith(entry.first.fqn, std::string(prefix)); });
}

// `layout` under the names without `prefix`. A parameter without it (the head) is not part of the base model.
FlatLayout WithoutPrefix(const FlatLayout& layout, std::string_view prefix) {
  FlatLayout base = {{}, layout.units};
  for (const auto& [fqn, shape] : layout.parameters) {
    if (!absl::StartsWith(fqn, std::string(prefix))) continue;
    base.parameters.push_back({fqn.substr(prefix.size()), shape});
  }
  for (std::string& unit : base.units) unit = std::string(absl::StripPrefix(unit, std::string(prefix)));
  return base;
}

// Of a file without the values that are no tensors, which its notes name: each tensor of `wanted` is read or missed.
DescribeOptions OfModel(const std::optional<FlatLayout>& layout, const std::vector<TensorRole>& map,
                        std::vector<std::string>* notes) {
  return {.model_only = true, .flat_layout = layout, .map = map, .skip_links = true, .notes = notes};
}

// The names, shapes and dtypes of the model at `path`. If `layout` does not fit, the spelling without `prefix` is
// tried, and replaces it if it fits; if neither fits, the error is the first one's.
// `notes`: DescribeOptions::notes.
absl::StatusOr<StateDict> Describe(const std::string& path, std::string_view prefix, const std::vector<TensorRole>& map,
                                   std::optional<FlatLayout>& layout, std::vector<std::string>* notes) {
  absl::StatusOr<StateDict> contents = DescribeCheckpoint(path, OfModel(layout, map, notes));
  if (!layout.has_value() || !absl::IsInvalidArgument(contents.status())) return contents;
  FlatLayout base = WithoutPrefix(*layout, prefix);
  absl::StatusOr<StateDict> of_base = DescribeCheckpoint(path, OfModel(base, map, notes));
  if (!of_base.ok()) return contents;
  layout = std::move(base);
  return of_base;
}

// A sentence about the names of the file that are not loaded to `wanted`; empty if there are none.
std::string NoteOnOthers(const StateDict& contents, const StateDict& wanted) {
  std::set<StateKey> loaded;
  for (const auto& [key, value] : wanted.entries()) {
    if (const std::optional<StateKey> stored = contents.Resolve(key, wanted.aliases)) loaded.insert(*stored);
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : contents.entries()) {
    if (key.section == StateKey::Section::kModel && loaded.count(key) == 0) others.push_back(key.fqn);
  }
  if (others.empty()) return "";
  return absl::StrCat("left out: ", Counted(std::ssize(others), "tensor"),
                      " that the model does not have: ", SomeOf(others));
}

absl::StatusOr<FlatLayout> OwnLayout(const std::string& file, Module& model) {
  FSDP_ASSIGN_OR_RETURN(std::optional<FlatLayout> given, ReadFlatLayout(file));
  if (given.has_value()) return *std::move(given);
  FlatLayout layout;
  std::set<const Parameter*> seen;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    // A shared parameter is in the flat parameter once, under its first name.
    if (seen.insert(parameter.get()).second) layout.parameters.push_back({name, parameter->shape});
  }
  return layout;
}

// Every name and shape in order, in a form for comparisons.
std::string IdentityOf(const FlatLayout& layout) {
  std::string text;
  for (const auto& [fqn, shape] : layout.parameters) absl::StrAppend(&text, fqn, " ", shape.ToString(), "\n");
  for (const std::string& unit : layout.units) absl::StrAppend(&text, "unit ", unit, "\n");
  return absl::StrCat(layout.parameters.size(), " parameters in ", layout.units.size(), " units, digest ",
                      DigestOf(text).ToHex());
}

}  // namespace

absl::StatusOr<FlatLayout> ModelLayout(const std::string& file, Module& model, ProcessGroup& group) {
  absl::StatusOr<FlatLayout> layout = OwnLayout(file, model);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, layout.status()));
  FSDP_RETURN_IF_ERROR(CheckSameOnRanks(group, {{"the layout of --flat_layout", IdentityOf(*layout), file}},
                                        "give every host a copy of the same file"));
  return layout;
}

// The ranks agree on the path before they describe it, so that all describe what they load.
absl::Status LoadInitialWeights(const std::string& path, std::string_view base_prefix, StateDict& wanted,
                                ProcessGroup& group, const LoadOptions& options, std::vector<std::string>* notes) {
  std::vector<std::string> skipped;
  FSDP_ASSIGN_OR_RETURN(const std::string resolved, ResolveCheckpoint(path, group, &skipped));
  LoadOptions spelled = options;
  std::vector<std::string> found;
  const absl::StatusOr<StateDict> contents = Describe(resolved, base_prefix, spelled.map, spelled.flat_layout, &found);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, contents.status()));
  StateDict renamed = WithoutPrefix(wanted, base_prefix);
  // If the file has no name in either spelling, loading `wanted` fails and lists the missing names.
  const bool is_base = !AnyHasPrefix(*contents, base_prefix) &&
                       std::any_of(renamed.entries().begin(), renamed.entries().end(),
                                   [&](const auto& entry) { return contents->contains(entry.first); });
  StateDict& named = is_base ? renamed : wanted;
  if (is_base) found.push_back(absl::StrCat("its names are read as a base model's, without ", Quote(base_prefix)));
  found.push_back(NoteOnOthers(*contents, named));
  found.insert(found.begin(), skipped.begin(), skipped.end());
  for (const std::string& note : found) {
    if (notes != nullptr && !note.empty()) notes->push_back(absl::StrCat(resolved, ": ", note));
  }
  return LoadCheckpoint(resolved, named, group, spelled);
}

}  // namespace fsdp
