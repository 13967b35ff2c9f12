// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/flat_layout.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "checkpoint/storage/file_system.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

constexpr char kFlatName[] = "_flat_param";

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool Contains(const std::string& unit, const std::string& fqn) {
  return unit.empty() || absl::StartsWith(fqn, absl::StrCat(unit, "."));
}

// The offsets when each part begins at a multiple of `alignment` elements, and the end of the last.
std::pair<std::vector<int64_t>, int64_t> Offsets(const FlatUnit& unit, int64_t alignment) {
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const FlatUnit::Part& part : unit.parts) {
    offsets.push_back(RoundUp(end, alignment));
    end = offsets.back() + part.shape.numel();
  }
  return {offsets, end};
}

// A module with parameters in it.
struct Module {
  std::string name;
  std::string structure;  // its parameters' names and shapes, from here on
  int64_t own = 0;        // elements of its own parameters
  std::vector<std::unique_ptr<Module>> children;
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

// Chooses units so that their flat parameters have the given sizes, one after the other as modules are visited. Among
// the children of one module those of one structure are treated alike, as every wrap policy does.
class UnitSearch {
 public:
  UnitSearch(const std::vector<int64_t>& sizes, int world_size) : sizes_(sizes), world_size_(world_size) {}

  // One way to choose units among a module and what is in it.
  struct Way {
    std::vector<std::string> units;
    bool is_only = true;  // no other way takes as many sizes and leaves as much
  };
  // By the index of the next size, and the elements that no unit has taken.
  using Ways = std::map<std::pair<size_t, int64_t>, Way>;

  Ways Search(const Module& module, size_t first) {
    Ways ways = Below(module, first);
    const bool is_only_a_wrapper = module.own == 0 && module.children.size() == 1;
    if (is_only_a_wrapper || first == sizes_.size()) return ways;
    for (const auto& [state, way] : Below(module, first + 1)) {
      const auto& [next, left] = state;
      if (left == 0 || RoundUp(left, world_size_) != sizes_[first]) continue;
      Way with = way;
      with.units.insert(with.units.begin(), module.name);
      Add({next, 0}, std::move(with), ways);
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

  // Of the module's children, one after the other.
  Ways Below(const Module& module, size_t first) {
    std::map<Choices, Ways> by_choices;
    by_choices[{}][{first, module.own}] = {};
    for (const std::unique_ptr<Module>& child : module.children) {
      std::map<size_t, Ways> of_child;  // by its first size
      std::map<Choices, Ways> longer;
      for (const auto& [choices, ways] : by_choices) {
        for (const auto& [state, way] : ways) {
          const auto [at, is_new] = of_child.try_emplace(state.first);
          if (is_new) at->second = Search(*child, state.first);
          for (const auto& [child_state, child_way] : at->second) {
            Choices now = choices;
            const std::string choice = ChoiceIn(*child, child_way);
            if (now.try_emplace(child->structure, choice).first->second != choice) continue;
            Way both = {way.units, way.is_only && child_way.is_only};
            both.units.insert(both.units.end(), child_way.units.begin(), child_way.units.end());
            Add({child_state.first, state.second + child_state.second}, std::move(both), longer[now]);
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
    if (!is_new) at->second.is_only = false;
  }

  const std::vector<int64_t>& sizes_;
  const int world_size_;
  bool is_exhausted_ = false;
};

absl::Status Unusable(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("flat layout: ", what));
}

absl::Status WrongSize(const FlatUnit& unit, int64_t numel, int64_t packed, int world_size) {
  return Unusable(absl::StrCat("the flat parameter of unit ", Quote(unit.name), " has ", numel, " elements, which its ",
                               unit.parts.size(), " parameters of ", packed, " elements do not make for ", world_size,
                               world_size == 1 ? " rank" : " ranks"));
}

void SetOffsets(const std::vector<int64_t>& offsets, FlatUnit& unit) {
  for (size_t i = 0; i < unit.parts.size(); ++i) unit.parts[i].offset = offsets[i];
}

}  // namespace

absl::StatusOr<FlatLayout> ParseFlatLayout(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("parameters") || !parsed["parameters"].is_array()) {
    return Unusable("expected a JSON object with an array \"parameters\" of {\"name\", \"shape\"}");
  }
  FlatLayout layout;
  std::set<std::string> names;
  for (const auto& parameter : parsed["parameters"]) {
    const bool has_form = parameter.is_object() && parameter.contains("name") && parameter["name"].is_string() &&
                          parameter.contains("shape") && parameter["shape"].is_array();
    if (!has_form)
      return Unusable(absl::StrCat("a parameter is ", parameter.dump(), ", expected {\"name\", \"shape\"}"));
    const auto name = parameter["name"].get<std::string>();
    std::vector<int64_t> dims;
    for (const auto& dim : parameter["shape"]) dims.push_back(dim.is_number_integer() ? dim.get<int64_t>() : -1);
    const absl::StatusOr<Shape> shape = Shape::Create(dims);
    if (!shape.ok()) return Unusable(absl::StrCat("parameter ", Quote(name), ": ", shape.status().message()));
    if (!names.insert(name).second) return Unusable(absl::StrCat("parameter ", Quote(name), " is there twice"));
    layout.parameters.push_back({name, *shape});
  }
  if (!parsed.contains("units")) return layout;
  if (!parsed["units"].is_array()) return Unusable("\"units\" is no array of module names");
  for (const auto& unit : parsed["units"]) {
    if (!unit.is_string()) return Unusable("\"units\" is no array of module names");
    layout.units.push_back(unit.get<std::string>());
  }
  return layout;
}

absl::StatusOr<std::optional<FlatLayout>> ReadFlatLayout(const std::string& path) {
  if (path.empty()) return std::nullopt;
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  ASSIGN_OR_RETURN(const std::string json, ReadFile(PosixFileSystem(), path, kMaxBytes));
  absl::StatusOr<FlatLayout> layout = ParseFlatLayout(json);
  if (layout.ok()) return std::make_optional(*std::move(layout));
  return absl::Status(layout.status().code(), absl::StrCat(std::string(layout.status().message()), " in ", path));
}

absl::StatusOr<std::vector<FlatUnit>> DivideIntoUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                      const std::vector<std::string>& units) {
  std::vector<FlatUnit> divided;
  for (const std::string& unit : units) divided.push_back({unit, {}});
  for (const FlatLayout::Parameter& parameter : parameters) {
    FlatUnit* innermost = nullptr;
    for (FlatUnit& unit : divided) {
      if (!Contains(unit.name, parameter.fqn)) continue;
      if (innermost == nullptr || unit.name.size() > innermost->name.size()) innermost = &unit;
    }
    if (innermost == nullptr) return Unusable(absl::StrCat("parameter ", Quote(parameter.fqn), " is in no unit"));
    innermost->parts.push_back({parameter.fqn, parameter.shape, 0});
  }
  for (const FlatUnit& unit : divided) {
    if (unit.parts.empty()) return Unusable(absl::StrCat("unit ", Quote(unit.name), " holds no parameter"));
  }
  return divided;
}

absl::Status PlacePacked(int64_t numel, int world_size, FlatUnit& unit) {
  const auto [offsets, end] = Offsets(unit, 1);
  if (numel != end && numel != RoundUp(end, world_size)) return WrongSize(unit, numel, end, world_size);
  SetOffsets(offsets, unit);
  return absl::OkStatus();
}

absl::Status PlaceParts(int64_t numel, int world_size, FlatUnit& unit) {
  const auto [packed, packed_end] = Offsets(unit, 1);
  std::set<std::vector<int64_t>> ways;
  if (numel == packed_end || numel == RoundUp(packed_end, world_size)) ways.insert(packed);
  for (const int64_t alignment : {4, 8}) {  // 16 bytes of float32, and of what mixed precision computes in
    const auto [offsets, end] = Offsets(unit, alignment);
    if (numel == RoundUp(end, world_size)) ways.insert(offsets);
  }
  const auto [of_doubles, end_of_doubles] = Offsets(unit, 2);
  if (ways.empty() && numel == RoundUp(end_of_doubles, world_size)) ways.insert(of_doubles);
  if (ways.empty()) return WrongSize(unit, numel, packed_end, world_size);
  if (ways.size() > 1) {
    return Unusable(absl::StrCat("the parameters of unit ", Quote(unit.name), " make ", numel,
                                 " elements with and without alignment, for ", world_size, " ranks"));
  }
  SetOffsets(*ways.begin(), unit);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FindUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                   const std::vector<int64_t>& sizes, int world_size) {
  UnitSearch search(sizes, world_size);
  const UnitSearch::Ways ways = search.Search(*ModulesOf(parameters), 0);
  const auto found = ways.find({sizes.size(), 0});
  if (search.is_exhausted()) return Unusable("there are too many ways to choose units; name them");
  if (found == ways.end()) {
    return Unusable(
        absl::StrCat("no choice of units makes flat parameters of ", absl::StrJoin(sizes, ", "), " elements"));
  }
  if (!found->second.is_only) {
    return Unusable(absl::StrCat("more than one choice of units makes flat parameters of ", absl::StrJoin(sizes, ", "),
                                 " elements"));
  }
  return found->second.units;
}

std::string UnitOfFlatName(const std::string& name) {
  Check(IsFlatName(name), "no flat parameter");
  std::string unit = name.substr(0, name.size() - (sizeof(kFlatName) - 1));
  unit = absl::StrReplaceAll(unit, {{"_fsdp_wrapped_module.", ""}});
  if (!unit.empty()) unit.pop_back();  // the dot
  return unit;
}

bool IsFlatName(const std::string& name) {
  return name == kFlatName || absl::EndsWith(name, absl::StrCat(".", kFlatName));
}

}  // namespace fsdp
