// SPDX-License-Identifier: Apache-2.0
//
// The problem: an optimizer with two groups, decayed weights with ids 0 to 4 and biases with ids 5 to 7, has the
// model's parameters in the model's order in each group, but nothing says which parameter went to which group, nor
// which of the model's tensors are frozen or buffers and have no id.
//
//   model    a.weight  a.bias  b.weight  norm.weight  norm.bias      in order
//   group 0  0         .       1         .            .              ids in order, with the shapes of their state
//   group 1  .         2       .         3            4
//
// So the model's list is a merge of the groups' lists and of tensors that are passed over. Merge walks the model once
// and keeps every state that a merge can be in: how many ids of each group have a name so far. A tensor may take the
// next id of a group if the shape of that id's state is its own or unknown. Two ways to one state are remembered as
// ambiguous from that tensor on; an ambiguous end is an error, since a wrong guess would load moments into the wrong
// parameters.
#include "fsdp/checkpoint/torch/state/parameter_ids.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Names = std::map<std::string, std::string>;

// Buffers that torch's and Hugging Face's modules keep in a state dict and that are floating-point as parameters are.
constexpr std::array kBufferNames = {"running_mean", "running_var", "inv_freq", "masked_bias"};

bool IsBuffer(const std::string& fqn, DType dtype) {
  if (!IsFloatingPoint(PartOf(dtype))) return true;
  for (const char* name : kBufferNames) {
    if (fqn == name || absl::EndsWith(fqn, absl::StrCat(".", name))) return true;
  }
  return false;
}

absl::Status Unknown(const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the optimizer state goes by parameter id, and ", why,
                   "; save it by name, with torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, "
                   "or read the model alone (TensorSourceOptions::model_only)"));
}

// The ids of each group, in order; empty when parameters go by name.
absl::StatusOr<std::vector<std::vector<std::string>>> IdsOf(const PythonJson& groups) {
  std::vector<std::vector<std::string>> ids;
  for (const PythonJson& group : groups) {
    std::vector<std::string>& of_group = ids.emplace_back();
    for (const PythonJson& param : group["params"]) {
      if (param.is_string()) return std::vector<std::vector<std::string>>();
      if (!param.is_number_integer())
        return absl::InvalidArgumentError("a parameter of param_groups is neither a name nor an id");
      of_group.push_back(absl::StrCat(param.get<int64_t>()));
    }
  }
  return ids;
}

// From param_groups[i]["param_names"], which torch saves since 2.6 for named parameters; empty if any group lacks it.
absl::StatusOr<Names> SavedNames(const PythonJson& groups) {
  Names names;
  for (const PythonJson& group : groups) {
    if (!group.contains("param_names") || !group["param_names"].is_array()) return Names();
    if (group["param_names"].size() != group["params"].size()) {
      return absl::DataLossError("the optimizer's param_names and params differ in length");
    }
    for (size_t i = 0; i < group["params"].size(); ++i) {
      const PythonJson& name = group["param_names"][i];
      if (!name.is_string()) return absl::DataLossError("the optimizer's param_names are no strings");
      names[absl::StrCat(group["params"][i].get<int64_t>())] = name.get<std::string>();
    }
  }
  return names;
}

// The merge described above. Keeps the states after each tensor, to trace back the one way to the end.
class Merge {
 public:
  Merge(const std::vector<std::vector<std::string>>& ids, const std::map<std::string, Shape>& shapes)
      : ids_(ids), shapes_(shapes) {}

  absl::StatusOr<Names> Run(const std::vector<FlatLayout::Parameter>& parameters, size_t passed_over) {
    std::vector<Ways> levels = {{{Taken(ids_.size(), 0), Way()}}};
    for (size_t i = 0; i < parameters.size(); ++i) {
      Ways next;
      for (const auto& [taken, way] : levels.back()) {
        for (size_t group = 0; group < ids_.size(); ++group) {
          if (IsNext(group, taken, parameters[i].shape)) Add(With(taken, group), group, way, i, next);
        }
        if (i - SumOf(taken) < passed_over) Add(taken, std::nullopt, way, i, next);
        if (words_ + WordsOf(next) > kMaxWords) return Unknown("there are too many ways to give them to parameters");
      }
      if (next.empty()) return Contradiction(parameters[i], levels.back().begin()->first);
      words_ += WordsOf(next);
      levels.push_back(std::move(next));
    }
    return NamesOf(parameters, levels);
  }

 private:
  // Bounds memory, and with it time, since each state that is kept is extended once: words of 8 bytes over all levels,
  // where a state takes one for each group and about 16 for the map.
  static constexpr size_t kMaxWords = 4'000'000;
  static constexpr size_t kWordsOfState = 16;

  // The state: of each group, how many ids have a name.
  using Taken = std::vector<size_t>;
  // How a state was reached.
  struct Way {
    std::optional<size_t> group;            // that of the last tensor; nullopt: the tensor was passed over
    std::optional<size_t> ambiguous_since;  // the first tensor at which a second way reached the state
  };
  using Ways = std::map<Taken, Way>;

  size_t WordsOf(const Ways& ways) const { return ways.size() * (kWordsOfState + ids_.size()); }

  static size_t SumOf(const Taken& taken) { return std::accumulate(taken.begin(), taken.end(), size_t{0}); }

  static Taken With(Taken taken, size_t group) {
    ++taken[group];
    return taken;
  }

  static void Add(const Taken& taken, std::optional<size_t> group, const Way& from, size_t index, Ways& ways) {
    const auto [at, is_new] = ways.try_emplace(taken, Way{.group = group, .ambiguous_since = from.ambiguous_since});
    if (!is_new && !at->second.ambiguous_since) at->second.ambiguous_since = index;
  }

  bool IsNext(size_t group, const Taken& taken, const Shape& shape) const {
    if (taken[group] == ids_[group].size()) return false;
    const auto at = shapes_.find(ids_[group][taken[group]]);
    return at == shapes_.end() || at->second == shape;  // an id without state fits any parameter
  }

  absl::StatusOr<Names> NamesOf(const std::vector<FlatLayout::Parameter>& parameters,
                                const std::vector<Ways>& levels) const {
    Taken taken;
    for (const std::vector<std::string>& of_group : ids_) taken.push_back(of_group.size());
    const auto whole = levels.back().find(taken);
    if (whole == levels.back().end()) {
      return Unknown(
          "their state has other shapes than the model's tensors: the order is another, or this is FSDP1's "
          "flat form");
    }
    if (whole->second.ambiguous_since) {
      return Unknown(absl::StrCat("its groups may be merged in more than one way at ",
                                  Quote(parameters[*whole->second.ambiguous_since].fqn)));
    }
    Names names;
    for (size_t i = parameters.size(); i-- > 0;) {
      const std::optional<size_t> group = levels[i + 1].at(taken).group;
      if (group) names[ids_[*group][--taken[*group]]] = parameters[i].fqn;
    }
    return names;
  }

  // No state is left after `parameter`: the error for it, with an id that does not fit as the example.
  absl::Status Contradiction(const FlatLayout::Parameter& parameter, const Taken& taken) const {
    for (size_t group = 0; group < ids_.size(); ++group) {
      if (taken[group] == ids_[group].size()) continue;
      const std::string& id = ids_[group][taken[group]];
      const auto at = shapes_.find(id);
      const std::string shape = at == shapes_.end() ? "" : at->second.ToString();
      return Unknown(absl::StrCat("state of shape ", shape, " of id ", id, " is not that of ", Quote(parameter.fqn),
                                  " of shape ", parameter.shape.ToString(),
                                  ": the order of the groups is another, or this is FSDP1's flat form"));
    }
    return Unknown(absl::StrCat("no id is left for ", Quote(parameter.fqn)));
  }

  const std::vector<std::vector<std::string>>& ids_;
  const std::map<std::string, Shape>& shapes_;
  size_t words_ = 0;
};

}  // namespace

std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model) {
  std::vector<FlatLayout::Parameter> parameters;
  for (const auto& [key, value] : model.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (key.section != StateKey::Section::kModel || tensor == nullptr || IsBuffer(key.fqn, tensor->dtype)) continue;
    parameters.push_back({key.fqn, tensor->shape});
  }
  return parameters;
}

absl::StatusOr<Names> NamesOfParameterIds(const PythonJson& groups, const std::map<std::string, Shape>& shapes,
                                          const StateDict& model) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::vector<std::string>> ids, IdsOf(groups));
  size_t count = 0;
  for (const auto& group : ids) count += group.size();
  if (count == 0) return Names();
  FSDP_ASSIGN_OR_RETURN(Names names, SavedNames(groups));
  if (!names.empty()) return names;
  const std::vector<FlatLayout::Parameter> parameters = ParametersOf(model);
  if (parameters.empty()) return Unknown("the model that gives ids their order is not in the same file");
  // Fewer ids than parameters can mean frozen parameters or FSDP1's flat parameters. Flat state has one dimension, so
  // state of two dimensions rules the second out.
  const bool may_be_flat =
      std::all_of(shapes.begin(), shapes.end(), [](const auto& shape) { return shape.second.rank() < 2; });
  if (parameters.size() < count || (parameters.size() > count && may_be_flat)) {
    return Unknown(absl::StrCat("there are ", count, " of them, but ", parameters.size(), " parameters in the model"));
  }
  return Merge(ids, shapes).Run(parameters, parameters.size() - count);
}

}  // namespace fsdp
