// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/state/unit_search.h"

#include <algorithm>
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

// A module with parameters in it.
struct Module {
  std::string name;
  std::string structure;  // its parameters' names and shapes, from here on
  int64_t own = 0;        // elements of its own parameters
  std::vector<std::unique_ptr<Module>> children;

  // ModuleList, Sequential.
  bool is_list() const {
    return own == 0 && std::all_of(children.begin(), children.end(), [](const auto& child) {
             const std::string last = child->name.substr(child->name.rfind('.') + 1);
             return std::all_of(last.begin(), last.end(), absl::ascii_isdigit);
           });
  }
};

std::unique_ptr<Module> ModulesOf(const std::vector<FlatLayout::Parameter>& parameters) {
  auto root = std::make_unique<Module>();
  for (const FlatLayout::Parameter& parameter : parameters) {
    Module* module = root.get();
    const std::vector<std::string> names = absl::StrSplit(parameter.fqn, '.');
    for (size_t i = 0; i + 1 < names.size(); ++i) {
      const std::string name = absl::StrJoin(names.begin(), names.begin() + i + 1, ".");
      const std::string rest = absl::StrJoin(names.begin() + i + 1, names.end(), ".");
      auto& children = module->children;
      const auto at =
          std::find_if(children.begin(), children.end(), [&](const auto& child) { return child->name == name; });
      const auto index = at - children.begin();
      if (at == children.end()) children.push_back(std::make_unique<Module>());
      module = children[index].get();
      module->name = name;
      absl::StrAppend(&module->structure, rest, " ", parameter.shape.ToString(), "\n");
    }
    module->own += parameter.shape.numel();
  }
  return root;
}

// Chooses units so that their flat parameters have the given sizes, one after the other as modules are visited.
class UnitSearch {
 public:
  UnitSearch(const std::vector<int64_t>& sizes, int world_size) : sizes_(sizes), world_size_(world_size) {}

  using Held = std::vector<const Module*>;  // modules whose own parameters lie in one flat parameter

  // One way to choose units among a module and what is in it.
  struct Way {
    std::vector<std::string> units;
    std::vector<Held> held;          // by each of `units`
    Held left;                       // by none of them
    std::vector<std::string> other;  // the units of another way with the same sizes; empty where there is none

    bool PlacesAs(const Way& way) const { return held == way.held && left == way.left; }
  };
  // By the index of the next size, and the elements that no unit has taken.
  using Ways = std::map<std::pair<size_t, int64_t>, Way>;

  // The unit around the module has room for `room` elements that its own units leave.
  Ways Search(const Module& module, size_t first, int64_t room) {
    Ways ways = Below(module, first, room, /*alike=*/false);
    const bool is_only_a_wrapper = module.own == 0 && module.children.size() == 1;
    if (is_only_a_wrapper || first == sizes_.size()) return ways;
    for (auto& [state, way] : Below(module, first + 1, sizes_[first], module.is_list())) {
      const auto& [next, left] = state;
      if (left == 0 || (left + world_size_ - 1) / world_size_ * world_size_ != sizes_[first]) continue;
      way.units.insert(way.units.begin(), module.name);
      way.held.insert(way.held.begin(), std::exchange(way.left, {}));
      if (!way.other.empty()) way.other.insert(way.other.begin(), module.name);
      Add({next, 0}, std::move(way), ways);
    }
    return ways;
  }

  bool is_exhausted() const { return is_exhausted_; }

 private:
  static constexpr size_t kMaxWays = 2000;

  // What was chosen in children of a structure, by that: their units' names, from there on.
  using Choices = std::map<std::string, std::string>;

  static std::string ChoiceIn(const Module& child, const Way& way) {
    std::string choice;
    for (const std::string& unit : way.units) absl::StrAppend(&choice, unit.substr(child.name.size()), "\n");
    return choice;
  }

  template <typename List>
  static List Joined(List list, const List& more) {
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }

  static Way Both(const Way& a, const Way& b) {
    Way both = {Joined(a.units, b.units), Joined(a.held, b.held), Joined(a.left, b.left), {}};
    if (!a.other.empty() || !b.other.empty()) {
      both.other = Joined(a.other.empty() ? a.units : a.other, b.other.empty() ? b.units : b.other);
    }
    return both;
  }

  // Of the module's children, one after the other; `alike` where those of one structure have the same units.
  Ways Below(const Module& module, size_t first, int64_t room, bool alike) {
    std::map<Choices, Ways> by_choices;
    if (module.own <= room) {
      by_choices[{}][{first, module.own}] = {{}, {}, module.own > 0 ? Held{&module} : Held{}, {}};
    }
    for (const std::unique_ptr<Module>& child : module.children) {
      std::map<size_t, Ways> of_child;  // by its first size
      std::map<Choices, Ways> longer;
      for (const auto& [choices, ways] : by_choices) {
        for (const auto& [state, way] : ways) {
          const auto [at, is_new] = of_child.try_emplace(state.first);
          if (is_new) at->second = Search(*child, state.first, room);
          for (const auto& [child_state, child_way] : at->second) {
            if (state.second + child_state.second > room) continue;
            Choices now = choices;
            const std::string choice = alike ? ChoiceIn(*child, child_way) : "";
            if (alike && now.try_emplace(child->structure, choice).first->second != choice) continue;
            Add({child_state.first, state.second + child_state.second}, Both(way, child_way), longer[now]);
          }
        }
      }
      is_exhausted_ = is_exhausted_ || longer.size() > kMaxWays;
      if (is_exhausted_) return {};
      by_choices = std::move(longer);
    }
    Ways all;
    for (auto& [choices, ways] : by_choices) {
      for (auto& [state, way] : ways) Add(state, std::move(way), all);
    }
    return all;
  }

  void Add(const std::pair<size_t, int64_t>& state, Way way, Ways& ways) {
    if (ways.size() >= kMaxWays) {
      is_exhausted_ = true;
      return;
    }
    const auto [at, is_new] = ways.try_emplace(state, way);
    Way& known = at->second;
    if (is_new || !known.other.empty()) return;
    known.other = known.PlacesAs(way) ? std::move(way.other) : std::move(way.units);
  }

  const std::vector<int64_t>& sizes_;
  const int world_size_;
  bool is_exhausted_ = false;
};

absl::Status Unusable(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("flat layout: ", what));
}

// The first few, and how many there are beside.
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
  const std::unique_ptr<Module> root = ModulesOf(parameters);
  const UnitSearch::Ways ways = search.Search(*root, 0, 0);
  const auto found = ways.find({sizes.size(), 0});
  const std::string wanted = absl::StrCat("flat parameters of ", ListedSizes(sizes), " elements");
  if (search.is_exhausted()) return Unusable(absl::StrCat("there are too many ways to choose units for ", wanted));
  if (found == ways.end()) return Unusable(absl::StrCat("no choice of units makes ", wanted));
  const UnitSearch::Way& way = found->second;
  if (way.other.empty()) return way.units;
  return Unusable(absl::StrCat("more than one choice of units makes ", wanted, ": ", ListedUnits(way.units), " and ",
                               ListedUnits(way.other)));
}

}  // namespace fsdp
