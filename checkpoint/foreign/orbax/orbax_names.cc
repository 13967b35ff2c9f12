// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/step_counter.h"

namespace fsdp {
namespace {

constexpr char kModelBranch[] = "params";
constexpr char kOptimizerBranch[] = "opt_state";

bool AnyIn(const std::vector<OrbaxArrayName>& arrays, const std::string& branch) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [&](const OrbaxArrayName& array) { return absl::StartsWith(array.name, branch + "."); });
}

// The text in front of the branches: "", or an item and a dot. nullopt: no tree has a branch "params".
absl::StatusOr<std::optional<std::string>> PlaceOfBranches(const std::vector<OrbaxArrayName>& arrays,
                                                           const std::vector<std::string>& items) {
  if (AnyIn(arrays, kModelBranch)) return "";
  std::vector<std::string> places;
  for (const std::string& item : items) {
    if (AnyIn(arrays, absl::StrCat(item, ".", kModelBranch))) places.push_back(item + ".");
  }
  if (places.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("several items have a branch \"", kModelBranch,
                                                   "\": ", Quote(places[0]), ", ", Quote(places[1]),
                                                   ": give the folder of one item"));
  }
  if (places.empty()) return std::nullopt;
  return places[0];
}

// A state of the optimizer: "0.mu" of "0.mu.layers_0.kernel".
struct StatePath {
  size_t array = 0;
  std::string fqn;
  std::string path;

  // The part after the last dot, if it is a name and no index.
  std::string Last() const {
    const std::string last = path.substr(path.rfind('.') + 1);
    return StepOfText(last) ? path : last;
  }
};

// Names of optax: "opt_state.0.mu.layers_0.kernel" is a state of parameter "layers_0.kernel", and between the branch
// and the name of the parameter is the path of the state in optax's tuples. PyTorch's users look for "mu", so the last
// part of the path is its name, unless two transformations have the same; then the whole path is.
class Naming {
 public:
  Naming(const std::vector<OrbaxArrayName>& arrays, std::string place)
      : arrays_(arrays), model_(absl::StrCat(place, kModelBranch)), optimizer_(absl::StrCat(place, kOptimizerBranch)) {
    for (const OrbaxArrayName& array : arrays_) {
      absl::string_view rest = array.name;
      if (absl::ConsumePrefix(&rest, model_ + ".")) shapes_.emplace(std::string(rest), &array.shape);
    }
  }

  OrbaxNames Run() {
    std::vector<StatePath> states;
    for (size_t i = 0; i < arrays_.size(); ++i) {
      absl::string_view rest = arrays_[i].name;
      if (absl::ConsumePrefix(&rest, model_ + ".")) {
        names_.keys.push_back(StateKey::Model(std::string(rest)));
        continue;
      }
      names_.keys.push_back(StateKey::Extra(arrays_[i].name));
      if (!absl::ConsumePrefix(&rest, optimizer_ + ".")) continue;
      if (std::optional<StatePath> state = StateOf(rest, i)) states.push_back(*std::move(state));
    }
    NameStates(states);
    names_.layout.text = absl::StrCat("model from ", Quote(model_));
    if (!states.empty()) absl::StrAppend(&names_.layout.text, ", optimizer from ", Quote(optimizer_));
    return std::move(names_);
  }

 private:
  // The longest name of a parameter that ends `rest` decides. A number can only be the state of a parameter that is
  // one, but a factored state has other dimensions.
  std::optional<StatePath> StateOf(absl::string_view rest, size_t array) const {
    const Shape& shape = arrays_[array].shape;
    for (size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.', dot + 1)) {
      const auto at = shapes_.find(std::string(rest.substr(dot + 1)));
      if (at == shapes_.end()) continue;
      if (shape.rank() == 0 && at->second->rank() != 0) return std::nullopt;
      return StatePath{array, at->first, std::string(rest.substr(0, dot))};
    }
    return std::nullopt;
  }

  // Two passes: whether a name is unique is known only when all states are.
  void NameStates(const std::vector<StatePath>& states) {
    std::map<std::string, std::set<std::string>> paths;  // by their last part
    for (const StatePath& state : states) paths[state.Last()].insert(state.path);
    for (const StatePath& state : states) {
      const std::string last = state.Last();
      names_.keys[state.array] = StateKey::OptimState(state.fqn, paths[last].size() == 1 ? last : state.path);
    }
  }

  const std::vector<OrbaxArrayName>& arrays_;
  const std::string model_, optimizer_;
  absl::flat_hash_map<std::string, const Shape*> shapes_;  // of the parameters
  OrbaxNames names_;
};

// The scalars at the top of the tree, or of an item, that count steps.
std::vector<size_t> CountersOf(const std::vector<OrbaxArrayName>& arrays, const std::string& place) {
  std::vector<std::pair<size_t, size_t>> counters;
  for (size_t i = 0; i < arrays.size(); ++i) {
    absl::string_view name = arrays[i].name;
    if (arrays[i].shape.rank() != 0 || !absl::ConsumePrefix(&name, place)) continue;
    if (const auto order = StepCounterOrder(std::string_view(name.data(), name.size()))) {
      counters.emplace_back(*order, i);
    }
  }
  std::sort(counters.begin(), counters.end());
  std::vector<size_t> sorted;
  for (const auto& [order, i] : counters) sorted.push_back(i);
  return sorted;
}

}  // namespace

// A TrainState of Flax has branches "params" and "opt_state"; what is neither is extra. A tree without them is a model,
// unless it has an optimizer's branch, since then the parameters would be guessed.
absl::StatusOr<OrbaxNames> NameOrbaxArrays(const std::vector<OrbaxArrayName>& arrays,
                                           const std::vector<std::string>& items) {
  const absl::StatusOr<std::optional<std::string>> place = PlaceOfBranches(arrays, items);
  if (!place.ok()) return place.status();
  OrbaxNames names;
  if (*place) {
    names = Naming(arrays, **place).Run();
  } else if (AnyIn(arrays, kOptimizerBranch)) {
    for (const OrbaxArrayName& array : arrays) names.keys.push_back(StateKey::Extra(array.name));
    names.layout.text = absl::StrCat("no model: there is no branch \"", kModelBranch, "\"");
  } else {
    for (const OrbaxArrayName& array : arrays) names.keys.push_back(StateKey::Model(array.name));
    names.layout.text = "model from the whole tree";
  }
  names.counters = CountersOf(arrays, place->value_or(""));
  for (const size_t counter : names.counters) names.keys[counter] = StateKey::Extra(arrays[counter].name);
  return names;
}

}  // namespace fsdp
