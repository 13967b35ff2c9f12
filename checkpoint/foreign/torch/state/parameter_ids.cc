// SPDX-License-Identifier: Apache-2.0
//
// The problem: an optimizer with two groups, decayed weights with ids 0 to 4 and biases with ids 5 to 7, has the
// model's parameters in the model's order in each group, but nothing records which parameter went to which group, nor
// which of the model's tensors are frozen or buffers and have no id.
//
//   model    a.weight  a.bias  b.weight  norm.weight  norm.bias      in order
//   group 0  0         .       1         .            .              ids in order, with the shapes of their state
//   group 1  .         2       .         3            4
//
// So the model's list is a merge of the groups' lists and of tensors that are passed over. Merge walks the model once
// and keeps every state that a merge can be in, packed: how many ids of each group have a name so far. A tensor may
// take the next id of a group if the shape of that id's state is equal or unknown. A state that is reached in two ways
// is marked as ambiguous from that tensor on; an ambiguous end is an error, because a wrong guess would load moments
// into the wrong parameters.
#include "fsdp/checkpoint/foreign/torch/state/parameter_ids.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Buffers that torch's and Hugging Face's modules keep in a state dict and that are floating-point, like parameters.
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
                   "or read only the model (TensorSourceOptions::model_only)"));
}

using Ids = std::vector<std::vector<int64_t>>;

// The ids of each group, in order; empty when parameters are identified by name.
absl::StatusOr<Ids> IdsOf(const PythonJson& groups) {
  Ids ids;
  for (const PythonJson& group : groups) {
    std::vector<int64_t>& of_group = ids.emplace_back();
    of_group.reserve(group["params"].size());
    for (const PythonJson& param : group["params"]) {
      if (param.is_string()) return Ids();
      if (!param.is_number_integer())
        return absl::InvalidArgumentError("a parameter of param_groups is neither a name nor an id");
      of_group.push_back(param.get<int64_t>());
    }
  }
  return ids;
}

// From param_groups[i]["param_names"], which torch saves since 2.6 for named parameters; empty if any group lacks it.
absl::StatusOr<ParameterNames> TakeSavedNames(PythonJson& groups) {
  for (const PythonJson& group : groups) {
    if (!group.contains("param_names") || !group["param_names"].is_array()) return ParameterNames();
    if (group["param_names"].size() != group["params"].size()) {
      return absl::DataLossError("the optimizer's param_names and params differ in length");
    }
  }
  ParameterNames names;
  for (PythonJson& group : groups) {
    for (size_t i = 0; i < group["params"].size(); ++i) {
      PythonJson& name = group["param_names"][i];
      if (!name.is_string()) return absl::DataLossError("the optimizer's param_names are not strings");
      names.Add(group["params"][i].get<int64_t>(), std::move(name.get_ref<std::string&>()));
    }
  }
  names.Finish();
  return names;
}

using IsInScope = std::function<bool(const std::string& fqn)>;

// The entries of `model` that are parameters and in the scope, in order.
std::vector<uint32_t> ParameterEntries(const StateDict& model, const IsInScope& is_in_scope) {
  std::vector<uint32_t> entries;
  for (size_t i = 0; i < model.entries().size(); ++i) {
    const auto& [key, value] = model.entries()[i];
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    const bool is_model = key.section == StateKey::Section::kModel && tensor != nullptr &&
                          (is_in_scope == nullptr || is_in_scope(key.fqn));
    if (is_model && !IsBuffer(key.fqn, tensor->dtype)) entries.push_back(static_cast<uint32_t>(i));
  }
  return entries;
}

// The merge described above. Keeps the states after each tensor, to trace back the single way to the end.
class Merge {
 public:
  // `parameters`: entries of `model`.
  Merge(const Ids& ids, const KeyShapes& shapes, const StateDict& model, const std::vector<uint32_t>& parameters)
      : ids_(ids), shapes_(shapes), model_(model), parameters_(parameters) {}

  absl::StatusOr<ParameterNames> Run(size_t passed_over) {
    Ways ways = {{Taken(ids_.size(), 0), Way()}};
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Shape& shape = ShapeOf(i);
      Ways next;
      for (const auto& [taken, way] : ways) {
        for (size_t group = 0; group < ids_.size(); ++group) {
          if (IsNext(group, taken, shape)) Add(With(taken, group), group, way, i, next);
        }
        if (i - SumOf(taken) < passed_over) Add(taken, std::nullopt, way, i, next);
        if (words_ + WordsOf(next) > kMaxWords) return Unknown("there are too many ways to give them to parameters");
      }
      if (next.empty()) return Contradiction(i, ways.begin()->first);
      words_ += WordsOf(next);
      Keep(next);
      ways = std::move(next);
    }
    return NamesOf(ways);
  }

 private:
  // Bounds memory, and therefore time, because each kept state is extended once: words of 8 bytes over all levels.
  static constexpr size_t kMaxWords = 4'000'000;

  // The state: for each group, how many ids have a name.
  using Taken = std::vector<uint32_t>;
  // How a state was reached.
  struct Way {
    std::optional<size_t> group;            // the last tensor's group; nullopt: the tensor was passed over
    std::optional<size_t> ambiguous_since;  // the first tensor at which a second way reached the state
  };
  using Ways = std::map<Taken, Way>;

  // The size of a state in kept_: the numbers of Taken, and 1 + Way::group, or 0 for nullopt.
  size_t NumbersOfState() const { return ids_.size() + 1; }
  size_t WordsOf(const Ways& ways) const { return ways.size() * (NumbersOfState() / 2 + 1); }

  const StateDict::Entry& Entry(size_t parameter) const { return model_.entries()[parameters_[parameter]]; }
  const std::string& NameOf(size_t parameter) const { return Entry(parameter).first.fqn; }
  const Shape& ShapeOf(size_t parameter) const { return std::get<ShardedTensor>(Entry(parameter).second).shape; }

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
    return shapes_.Fits(absl::StrCat(ids_[group][taken[group]]), shape);
  }

  // Adds the states of a level to kept_.
  void Keep(const Ways& ways) {
    levels_.push_back(kept_.size());
    for (const auto& [taken, way] : ways) {
      kept_.insert(kept_.end(), taken.begin(), taken.end());
      kept_.push_back(way.group ? static_cast<uint32_t>(*way.group + 1) : 0);
    }
  }

  // The group of the last tensor of a state of a level. States of a level are sorted.
  std::optional<size_t> GroupOf(size_t level, const Taken& taken) const {
    const size_t numbers = NumbersOfState();
    const size_t end = level + 1 < levels_.size() ? levels_[level + 1] : kept_.size();
    size_t first = 0;
    size_t count = (end - levels_[level]) / numbers;
    const auto state = [&](size_t i) { return kept_.begin() + static_cast<int64_t>(levels_[level] + i * numbers); };
    while (count > 1) {
      const size_t half = count / 2;
      const auto middle = state(first + half);
      const bool is_below =
          std::lexicographical_compare(taken.begin(), taken.end(), middle, middle + static_cast<int64_t>(taken.size()));
      if (!is_below) first += half;
      count = is_below ? half : count - half;
    }
    const uint32_t group = *(state(first) + static_cast<int64_t>(taken.size()));
    return group == 0 ? std::nullopt : std::make_optional<size_t>(group - 1);
  }

  // `ways`: the states of the last level.
  absl::StatusOr<ParameterNames> NamesOf(const Ways& ways) const {
    Taken taken;
    for (const std::vector<int64_t>& of_group : ids_) taken.push_back(static_cast<uint32_t>(of_group.size()));
    const auto whole = ways.find(taken);
    if (whole == ways.end()) {
      return Unknown(
          absl::StrCat("the model's last tensors have other shapes than their state: the order of the groups "
                       "is another",
                       OrFlat()));
    }
    if (whole->second.ambiguous_since) {
      return Unknown(absl::StrCat("its groups may be merged in more than one way at ",
                                  Quote(NameOf(*whole->second.ambiguous_since))));
    }
    ParameterNames names(&model_);
    for (size_t i = parameters_.size(); i-- > 0;) {
      const std::optional<size_t> group = GroupOf(i, taken);
      if (group) names.Add(ids_[*group][--taken[*group]], parameters_[i]);
    }
    names.Finish();
    return names;
  }

  std::string OrFlat() const { return shapes_.is_flat() ? ", or this is FSDP1's flat form" : ""; }

  // The error when no state remains after a parameter, with an id that does not fit as the example.
  absl::Status Contradiction(size_t parameter, const Taken& taken) const {
    for (size_t group = 0; group < ids_.size(); ++group) {
      if (taken[group] == ids_[group].size()) continue;
      const int64_t id = ids_[group][taken[group]];
      return Unknown(absl::StrCat(shapes_.Describe(absl::StrCat(id)), " of id ", id, " cannot be a state of ",
                                  Quote(NameOf(parameter)), " of shape ", ShapeOf(parameter).ToString(),
                                  ": the order of the groups is another, or the optimizer keeps states of "
                                  "other shapes",
                                  OrFlat()));
    }
    return Unknown(absl::StrCat("no id is left for ", Quote(NameOf(parameter))));
  }

  const Ids& ids_;
  const KeyShapes& shapes_;
  const StateDict& model_;
  const std::vector<uint32_t>& parameters_;
  size_t words_ = 0;
  std::deque<uint32_t> kept_;  // the states after each tensor
  std::deque<size_t> levels_;  // for each tensor: the index in kept_ of its first state
};

}  // namespace

void ParameterNames::Finish() {
  std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.id < b.id; });
}

const std::string* ParameterNames::Find(std::string_view id) const {
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(id.data(), id.size()), &number) || absl::StrCat(number) != id) return nullptr;
  const auto after =
      std::upper_bound(rows_.begin(), rows_.end(), number, [](int64_t n, const Row& row) { return n < row.id; });
  if (after == rows_.begin() || std::prev(after)->id != number) return nullptr;
  const uint32_t place = std::prev(after)->place;
  return names_.empty() ? &model_->entries()[place].first.fqn : &names_[place];
}

std::vector<int64_t> ParameterNames::ids() const {
  std::vector<int64_t> ids;
  for (const Row& row : rows_) {
    if (ids.empty() || ids.back() != row.id) ids.push_back(row.id);
  }
  return ids;
}

std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model) {
  std::vector<FlatLayout::Parameter> parameters;
  for (const uint32_t i : ParameterEntries(model, nullptr)) {
    const auto& [key, value] = model.entries()[i];
    parameters.push_back({key.fqn, std::get<ShardedTensor>(value).shape});
  }
  return parameters;
}

absl::StatusOr<ParameterNames> NamesOfParameterIds(PythonJson& groups, KeyShapes& shapes, const StateDict& model,
                                                   const IsInScope& is_in_scope) {
  FSDP_ASSIGN_OR_RETURN(const Ids ids, IdsOf(groups));
  size_t count = 0;
  for (const auto& group : ids) count += group.size();
  if (count == 0) return ParameterNames();
  FSDP_ASSIGN_OR_RETURN(ParameterNames names, TakeSavedNames(groups));
  if (!names.empty()) return names;
  const std::vector<uint32_t> parameters = ParameterEntries(model, is_in_scope);
  if (parameters.empty()) return Unknown("the model that gives ids their order is not in the same file");
  std::vector<Shape> of_model;
  for (const uint32_t i : parameters) of_model.push_back(std::get<ShardedTensor>(model.entries()[i].second).shape);
  shapes.Compare(of_model);
  // Fewer ids than parameters can mean frozen parameters or FSDP1's flat parameters. Flat state has one dimension, so
  // state of two dimensions rules the second out.
  if (parameters.size() < count || (parameters.size() > count && shapes.is_flat())) {
    return Unknown(absl::StrCat("there are ", count, " of them, but ", parameters.size(), " parameters in the model"));
  }
  return Merge(ids, shapes, model, parameters).Run(parameters.size() - count);
}

}  // namespace fsdp
