// SPDX-License-Identifier: Apache-2.0
//
// A name occurs in five places of a state dict: a model tensor's key, the keys of its optimizer state, the texts of
// param_groups, aliases, and the layouts of flat units. A filter or a rename must treat all five alike, or the target
// would hold optimizer state for parameters that it lacks; NewName is the one function that decides. Which name of a
// tied parameter is the tensor's and which are aliases is an accident of the file, so the parameter stays as long as
// one of its names passes. Keys of the section extra are not parameters, so filters ignore them, unless they are values
// of the model or of a parameter's optimizer state. Two names that become one can only be a mistake: it is an error,
// and never a silent choice.
#include "fsdp/checkpoint/convert/convert_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/rename_param_groups.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

int64_t CountOf(Section section, const StateDict& contents) {
  return std::count_if(contents.entries().begin(), contents.entries().end(),
                       [&](const StateDict::Entry& entry) { return entry.first.section == section; });
}

// Builds a plan from the entries of the source, one after the other, then aliases and units.
class Planner {
 public:
  Planner(const StateDict& source, const NameFilter& filter, std::optional<DType> dtype)
      : source_(source), filter_(filter), dtype_(dtype) {
    plan_.contents.Reserve(source.entries().size());
  }

  // For each tied tensor whose first name does not pass the filter, chooses the alias that is its name from now on.
  // Comes before all others, since any of them may name the parameter.
  absl::Status ChooseNames() {
    if (filter_.keeps_all()) return absl::OkStatus();
    for (const auto& [alias, target] : source_.aliases) {
      if (IsTensor(alias) || !IsTensor(target)) continue;  // an alias that is stored, too, is a tensor of its own
      FSDP_ASSIGN_OR_RETURN(const bool keeps_target, filter_.Keeps(target));
      FSDP_ASSIGN_OR_RETURN(const bool keeps_alias, filter_.Keeps(alias));
      if (keeps_target || !keeps_alias || !kept_as_.emplace(target, alias).second) continue;
      plan_.notes.push_back(absl::StrCat(Quote(target), " is left out by the filters, and its tensor is kept as ",
                                         Quote(alias), ", another name of it"));
    }
    return absl::OkStatus();
  }

  absl::Status AddEntry(const StateKey& key, const StateValue& value) {
    if (key.section == Section::kParamGroups) return AddParamGroups(value);
    StateKey renamed = key;
    // Filters are about what is in the model.
    const std::optional<std::string> name = filter_.empty() ? std::nullopt : NameInModel(key);
    if (name) {
      FSDP_ASSIGN_OR_RETURN(std::optional<std::string> fqn, NewName(*name));
      if (!fqn) return absl::OkStatus();
      renamed = WithNameInModel(key, *fqn);
    }
    // The names of the source differ, so that only a rename can make two equal.
    if (!filter_.empty() && plan_.contents.contains(renamed)) {
      return absl::InvalidArgumentError(absl::StrCat(Quote(plan_.OriginOf(renamed).ToString()), " and ",
                                                     Quote(key.ToString()), " would both be named ",
                                                     Quote(renamed.ToString())));
    }
    if (!filter_.empty() && !(renamed == key)) plan_.origins.emplace(renamed, key);
    if (const auto* const text = std::get_if<std::string>(&value)) {
      std::string kept = WithNewReferences(key, renamed, *text);
      plan_.contents.Set(std::move(renamed), std::move(kept));
      return absl::OkStatus();
    }
    ShardedTensor tensor;
    tensor.dtype = std::get<ShardedTensor>(value).dtype;
    tensor.shape = std::get<ShardedTensor>(value).shape;
    if (key.section == Section::kModel && dtype_ && IsFloatingPoint(tensor.dtype)) tensor.dtype = *dtype_;
    plan_.contents.Set(std::move(renamed), std::move(tensor));
    return absl::OkStatus();
  }

  // Keeps the aliases that pass the filter, if the tensor is kept. Refuses an alias whose new name is a tensor's name:
  // the tensor would hide it.
  absl::Status AddAliases() {
    for (const auto& [alias, target] : source_.aliases) {
      FSDP_ASSIGN_OR_RETURN(const bool keep, filter_.Keeps(alias));
      const auto kept_as = kept_as_.find(target);
      if (!keep || (kept_as != kept_as_.end() && kept_as->second == alias)) continue;
      FSDP_ASSIGN_OR_RETURN(std::optional<std::string> new_alias, NewName(alias));
      FSDP_ASSIGN_OR_RETURN(std::optional<std::string> new_target, NewName(target));
      if (!new_alias || !new_target) continue;
      if (plan_.contents.contains(StateKey::Model(*new_alias)) &&
          source_.FindTensor(StateKey::Model(alias)) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("alias ", Quote(alias), " of ", Quote(target),
                                                       " would be named ", Quote(*new_alias),
                                                       ", which is a tensor's name"));
      }
      const auto [at, inserted] = plan_.contents.aliases.emplace(*std::move(new_alias), *std::move(new_target));
      if (!inserted) {
        return absl::InvalidArgumentError(
            absl::StrCat("alias ", Quote(alias), " and another would both be named ", Quote(at->first)));
      }
    }
    return absl::OkStatus();
  }

  // A parameter that is left out leaves a gap in its unit, as padding does: the offsets of the others stay. A unit that
  // loses all its parameters is dropped.
  absl::Status AddUnits() {
    for (const FlatUnitLayout& unit : source_.units) {
      FlatUnitLayout renamed = unit;
      renamed.parameters.clear();
      if (!unit.name.empty()) {  // the root keeps its empty name
        FSDP_ASSIGN_OR_RETURN(renamed.name, filter_.Rename(unit.name));
      }
      for (const FlatUnitLayout::Entry& entry : unit.parameters) {
        FSDP_ASSIGN_OR_RETURN(std::optional<std::string> fqn, NewName(entry.fqn));
        if (fqn) renamed.parameters.push_back({*std::move(fqn), entry.offset, entry.numel});
      }
      if (!renamed.parameters.empty() || unit.parameters.empty()) plan_.contents.units.push_back(std::move(renamed));
    }
    return absl::OkStatus();
  }

  // RunMetadata are facts about the run that trained these values, whatever their names and dtypes are now.
  void KeepAttributes() { plan_.contents.attributes = source_.attributes; }

  // A packed tensor has no other dtype that means the same.
  void NotePacked() {
    if (!dtype_) return;
    const auto is_packed = [](const StateDict::Entry& entry) {
      const auto* const tensor = std::get_if<ShardedTensor>(&entry.second);
      return entry.first.section == Section::kModel && tensor != nullptr && IsPacked(tensor->dtype);
    };
    const auto& entries = plan_.contents.entries();
    const auto count = std::count_if(entries.begin(), entries.end(), is_packed);
    if (count == 0) return;
    const auto first = std::find_if(entries.begin(), entries.end(), is_packed);
    plan_.notes.push_back(
        absl::StrCat(count, count == 1 ? " packed tensor keeps its dtype, " : " packed tensors keep their dtype, ",
                     std::string(DTypeName(std::get<ShardedTensor>(first->second).dtype)),
                     count == 1 ? ": " : ", the first being ", Quote(first->first.fqn)));
  }

  absl::StatusOr<ConvertPlan> Finish() && {
    // Of a source without a model, such as an optimizer's file, the filters choose optimizer state.
    const bool has_model = CountOf(Section::kModel, source_) > 0;
    const Section wanted = has_model ? Section::kModel : Section::kOptimState;
    const int64_t in_source = CountOf(wanted, source_);
    if (!filter_.keeps_all() && in_source > 0 && CountOf(wanted, plan_.contents) == 0) {
      const auto first = std::find_if(source_.entries().begin(), source_.entries().end(),
                                      [&](const StateDict::Entry& entry) { return entry.first.section == wanted; });
      return absl::InvalidArgumentError(absl::StrCat("the filters leave no ", has_model ? "model" : "optimizer",
                                                     " tensor of the source, which has ", in_source,
                                                     ", the first being ", Quote(first->first.fqn)));
    }
    return std::move(plan_);
  }

 private:
  // The name in the model that `key` is about; nullopt for a value of the program.
  static std::optional<std::string> NameInModel(const StateKey& key) {
    if (key.section != Section::kExtra) return key.fqn;
    if (const std::optional<StateName> state = StateOfKey(key)) return std::string(state->fqn);
    return NameOfModelValue(key);
  }

  // `key` about another name.
  static StateKey WithNameInModel(const StateKey& key, const std::string& name) {
    if (key.section == Section::kModel) return StateKey::Model(name);
    if (key.section == Section::kOptimState) return StateKey::OptimState(name, key.state);
    const std::optional<StateName> state = StateOfKey(key);
    return state ? ExtraOfState(name, state->path) : ModelValue(name);
  }

  // `text` of a value of the model, with the new names of the tensors in it, which begin with the name of the value.
  static std::string WithNewReferences(const StateKey& before, const StateKey& after, const std::string& text) {
    if (before == after || !NameOfModelValue(before)) return text;
    const auto beginning = [](const StateKey& key) { return absl::StrCat("\"name\":\"", key.fqn, "."); };
    return absl::StrReplaceAll(text, {{beginning(before), beginning(after)}});
  }

  bool IsTensor(const std::string& fqn) const { return source_.FindTensor(StateKey::Model(fqn)) != nullptr; }

  // The name of a parameter in the target; nullopt when it is left out. A name that does not pass the filter
  // becomes the name under which the tensor is kept, if it is.
  absl::StatusOr<std::optional<std::string>> NewName(const std::string& name) const {
    std::string kept = name;
    FSDP_ASSIGN_OR_RETURN(bool keep, filter_.Keeps(name));
    if (!keep) {
      if (const auto tied = source_.aliases.find(name); tied != source_.aliases.end() && !IsTensor(name)) {
        kept = tied->second;
        FSDP_ASSIGN_OR_RETURN(keep, filter_.Keeps(kept));
      }
      if (const auto kept_as = kept_as_.find(kept); kept_as != kept_as_.end()) {
        kept = kept_as->second;
        keep = true;
      }
    }
    if (!keep) return std::optional<std::string>();
    FSDP_ASSIGN_OR_RETURN(std::string renamed, filter_.Rename(kept));
    return std::make_optional(std::move(renamed));
  }

  // Parses the text only when names change, so that an unfiltered conversion keeps each byte of it.
  absl::Status AddParamGroups(const StateValue& value) {
    const std::string* text = std::get_if<std::string>(&value);
    if (text == nullptr || filter_.empty()) {
      plan_.contents.Set(StateKey::ParamGroups(), value);
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(std::string renamed,
                          RenameParamGroups(*text, [this](const std::string& name) { return NewName(name); }));
    plan_.contents.Set(StateKey::ParamGroups(), std::move(renamed));
    return absl::OkStatus();
  }

  const StateDict& source_;
  const NameFilter& filter_;
  const std::optional<DType> dtype_;
  std::map<std::string, std::string> kept_as_;  // name of a tensor that the filter leaves out -> the alias that stays
  ConvertPlan plan_;
};

}  // namespace

absl::StatusOr<ConvertPlan> PlanConversion(const StateDict& source, const NameFilter& filter,
                                           std::optional<DType> dtype, bool model_only) {
  Planner planner(source, filter, dtype);
  FSDP_RETURN_IF_ERROR(planner.ChooseNames());
  for (const auto& [key, value] : source.entries()) {
    if (model_only && key.section != Section::kModel && !NameOfModelValue(key)) continue;
    FSDP_RETURN_IF_ERROR(planner.AddEntry(key, value));
  }
  FSDP_RETURN_IF_ERROR(planner.AddAliases());
  FSDP_RETURN_IF_ERROR(planner.AddUnits());
  planner.KeepAttributes();
  planner.NotePacked();
  return std::move(planner).Finish();
}

}  // namespace fsdp
