// SPDX-License-Identifier: Apache-2.0
//
// The search. FSDP1 numbers its flat parameters in the order in which it visits modules: parents first, then children
// in order. One walk in that order covers every choice of units; the rest of the walk depends on the part before it
// only by the SearchState:
//
//   next_size    how many flat parameters the previous units have used up
//   open_numel   elements of parameters that are in no unit yet, and go to the innermost enclosing unit
//
// A module is either not a unit, and its elements stay open; or it is the unit of sizes[next_size], and the elements
// that are open inside it, padded for the ranks, must be that many. For sizes 90, 129, 129:
//
//   ""  {embed 78}       unit 0: 78 + 12 = 90
//   +- h                 not a unit
//   |  +- h.0 {129}      unit 1
//   |  +- h.1 {129}      unit 2
//   +- norm {12}         not a unit: its elements stay open, for ""
//
// Choices that lead to the same state have the same continuations, so they are merged: the first is kept, and the unit
// names of one other that places parameters differently, its rival. A stack of n blocks then costs n states instead of
// 2^n choices, and ambiguity is not lost: a result with a rival is refused, because a wrong guess would silently load
// moments into the wrong parameters.
//
// Bounds: a walk ends when more elements are open than the enclosing unit can hold, and no module may have more than
// kMaxStates states. Models that wrap by any of torch's policies stay far below; beyond it the search gives up.
#include "fsdp/checkpoint/foreign/torch/state/unit_search.h"

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// A module that has parameters, itself or in its children.
struct ModuleNode {
  std::string name;
  std::string structure;  // names, relative to this module, and shapes of all parameters: equal for equal blocks
  int64_t own_numel = 0;  // elements of its own parameters, without its children's
  std::vector<std::unique_ptr<ModuleNode>> children;

  // ModuleList, Sequential: numbered children and no parameter of its own.
  bool is_list() const {
    return own_numel == 0 && std::all_of(children.begin(), children.end(), [](const auto& child) {
             const std::string last = child->name.substr(child->name.rfind('.') + 1);
             return std::all_of(last.begin(), last.end(), absl::ascii_isdigit);
           });
  }
};

// The tree of modules in the dotted names of the parameters, in the order of the parameters.
std::unique_ptr<ModuleNode> ModuleTree(const std::vector<FlatLayout::Parameter>& parameters) {
  auto root = std::make_unique<ModuleNode>();
  for (const FlatLayout::Parameter& parameter : parameters) {
    ModuleNode* module = root.get();
    const std::vector<std::string> names = absl::StrSplit(parameter.fqn, '.');
    for (size_t i = 0; i + 1 < names.size(); ++i) {
      const std::string name = absl::StrJoin(names.begin(), names.begin() + i + 1, ".");
      const std::string rest = absl::StrJoin(names.begin() + i + 1, names.end(), ".");
      auto& children = module->children;
      const auto at =
          std::find_if(children.begin(), children.end(), [&](const auto& child) { return child->name == name; });
      const auto index = at - children.begin();
      if (at == children.end()) children.push_back(std::make_unique<ModuleNode>());
      module = children[index].get();
      module->name = name;
      absl::StrAppend(&module->structure, rest, " ", parameter.shape.ToString(), "\n");
    }
    module->own_numel += parameter.shape.numel();
  }
  return root;
}

using ModuleSet = std::vector<const ModuleNode*>;  // modules whose own parameters are in one flat parameter

// One choice of units in a part of the model.
struct UnitChoice {
  std::vector<std::string> units;
  std::vector<ModuleSet> modules;        // of each of `units`
  ModuleSet open_modules;                // in none of `units`
  std::vector<std::string> rival_units;  // another choice with the same state and another placement; empty: no rival

  bool PlacesLike(const UnitChoice& choice) const {
    return modules == choice.modules && open_modules == choice.open_modules;
  }
};

struct SearchState {
  size_t next_size = 0;
  int64_t open_numel = 0;

  auto operator<=>(const SearchState&) const = default;
};

using ChoicesByState = std::map<SearchState, UnitChoice>;

class UnitSearch {
 public:
  UnitSearch(const std::vector<int64_t>& sizes, int world_size) : sizes_(sizes), world_size_(world_size) {}

  // Every choice in `module` and its children, from sizes_[next_size] on. The enclosing unit has `room` elements;
  // choices that leave more open are dropped.
  ChoicesByState Choose(const ModuleNode& module, size_t next_size, int64_t room) {
    ChoicesByState choices = ChooseInside(module, next_size, room, Siblings::kIndependent);
    // A module that only wraps one child places parameters like that child.
    const bool is_wrapper = module.own_numel == 0 && module.children.size() == 1;
    if (is_wrapper || next_size == sizes_.size()) return choices;
    const int64_t size = sizes_[next_size];
    const Siblings siblings = module.is_list() ? Siblings::kUniform : Siblings::kIndependent;
    for (auto& [state, choice] : ChooseInside(module, next_size + 1, size, siblings)) {
      if (state.open_numel == 0 || Padded(state.open_numel) != size) continue;
      choice.units.insert(choice.units.begin(), module.name);
      choice.modules.insert(choice.modules.begin(), std::exchange(choice.open_modules, {}));
      if (!choice.rival_units.empty()) choice.rival_units.insert(choice.rival_units.begin(), module.name);
      Add({.next_size = state.next_size, .open_numel = 0}, std::move(choice), choices);
    }
    return choices;
  }

  // True when the search gave up, and its choices are incomplete.
  bool is_exhausted() const { return is_exhausted_; }

 private:
  static constexpr size_t kMaxStates = 2000;

  // kUniform: children of equal structure have equal units, as unit_search.h documents for lists that are units.
  enum class Siblings { kIndependent, kUniform };

  // By structure: the names of the units in each child of that structure, relative to the child.
  using UnitsByStructure = std::map<std::string, std::string>;

  int64_t Padded(int64_t numel) const { return (numel + world_size_ - 1) / world_size_ * world_size_; }

  static std::string RelativeUnits(const ModuleNode& child, const UnitChoice& choice) {
    std::string names;
    for (const std::string& unit : choice.units) absl::StrAppend(&names, unit.substr(child.name.size()), "\n");
    return names;
  }

  template <typename List>
  static List Concatenate(List list, const List& more) {
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }

  // `before` in the siblings before a child, `in_child` in the child. A rival of either makes a rival of the whole.
  static UnitChoice Concatenate(const UnitChoice& before, const UnitChoice& in_child) {
    UnitChoice whole = {.units = Concatenate(before.units, in_child.units),
                        .modules = Concatenate(before.modules, in_child.modules),
                        .open_modules = Concatenate(before.open_modules, in_child.open_modules),
                        .rival_units = {}};
    if (!before.rival_units.empty() || !in_child.rival_units.empty()) {
      whole.rival_units = Concatenate(before.rival_units.empty() ? before.units : before.rival_units,
                                      in_child.rival_units.empty() ? in_child.units : in_child.rival_units);
    }
    return whole;
  }

  // Every choice in the children of `module`, one child after the other; its own parameters are open.
  ChoicesByState ChooseInside(const ModuleNode& module, size_t next_size, int64_t room, Siblings siblings) {
    // Uniform siblings remember their choice, so that later ones can follow it; otherwise there is one entry.
    std::map<UnitsByStructure, ChoicesByState> before;
    if (module.own_numel <= room) {
      UnitChoice own;
      if (module.own_numel > 0) own.open_modules = {&module};
      before[{}][{.next_size = next_size, .open_numel = module.own_numel}] = std::move(own);
    }
    for (const std::unique_ptr<ModuleNode>& child : module.children) {
      std::map<size_t, ChoicesByState> in_child;  // by the child's first size: searched once for each
      std::map<UnitsByStructure, ChoicesByState> after;
      for (const auto& [chosen, choices] : before) {
        for (const auto& [state, choice] : choices) {
          const auto [at, is_new] = in_child.try_emplace(state.next_size);
          if (is_new) at->second = Choose(*child, state.next_size, room);
          for (const auto& [child_state, child_choice] : at->second) {
            const int64_t open_numel = state.open_numel + child_state.open_numel;
            if (open_numel > room) continue;
            UnitsByStructure chosen_now = chosen;
            if (siblings == Siblings::kUniform) {
              const std::string units = RelativeUnits(*child, child_choice);
              if (chosen_now.try_emplace(child->structure, units).first->second != units) continue;
            }
            Add({.next_size = child_state.next_size, .open_numel = open_numel}, Concatenate(choice, child_choice),
                after[chosen_now]);
          }
        }
      }
      is_exhausted_ = is_exhausted_ || after.size() > kMaxStates;
      if (is_exhausted_) return {};
      before = std::move(after);
    }
    ChoicesByState all;
    for (auto& [chosen, choices] : before) {
      for (auto& [state, choice] : choices) Add(state, std::move(choice), all);
    }
    return all;
  }

  // Adds `choice`, or makes it the rival of the choice with the same state, if it places parameters differently.
  void Add(const SearchState& state, UnitChoice choice, ChoicesByState& choices) {
    if (choices.size() >= kMaxStates) {
      is_exhausted_ = true;
      return;
    }
    const auto [at, is_new] = choices.try_emplace(state, choice);
    UnitChoice& known = at->second;
    if (is_new || !known.rival_units.empty()) return;
    known.rival_units = known.PlacesLike(choice) ? std::move(choice.rival_units) : std::move(choice.units);
  }

  const std::vector<int64_t>& sizes_;
  const int world_size_;
  bool is_exhausted_ = false;
};

absl::Status Unusable(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("flat layout: ", what));
}

// The first few of `items`, and the number of the others.
std::string Listed(const std::vector<std::string>& items) {
  constexpr size_t kMaxNamed = 8;
  const size_t named = std::min(items.size(), kMaxNamed);
  std::string text = absl::StrJoin(items.begin(), items.begin() + named, ", ");
  if (items.size() > named) absl::StrAppend(&text, " and ", items.size() - named, " more");
  return text;
}

std::string ListedUnits(const std::vector<std::string>& units) {
  std::vector<std::string> quoted;
  for (const std::string& unit : units) quoted.push_back(Quote(unit));
  return absl::StrCat("[", Listed(quoted), "]");
}

std::string ListedSizes(const std::vector<int64_t>& sizes) {
  std::vector<std::string> numbers;
  for (const int64_t size : sizes) numbers.push_back(absl::StrCat(size));
  return Listed(numbers);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                   const std::vector<int64_t>& sizes, int world_size) {
  UnitSearch search(sizes, world_size);
  const std::unique_ptr<ModuleNode> root = ModuleTree(parameters);
  const ChoicesByState choices = search.Choose(*root, /*next_size=*/0, /*room=*/0);
  const auto found = choices.find({.next_size = sizes.size(), .open_numel = 0});
  const std::string wanted = absl::StrCat("flat parameters of ", ListedSizes(sizes), " elements");
  if (search.is_exhausted()) return Unusable(absl::StrCat("there are too many ways to choose units for ", wanted));
  if (found == choices.end()) {
    return absl::FailedPreconditionError(absl::StrCat("flat layout: no choice of units makes ", wanted));
  }
  const UnitChoice& choice = found->second;
  if (choice.rival_units.empty()) return choice.units;
  return Unusable(absl::StrCat("more than one choice of units makes ", wanted, ": ", ListedUnits(choice.units), " and ",
                               ListedUnits(choice.rival_units)));
}

}  // namespace fsdp
