// SPDX-License-Identifier: Apache-2.0
//
// One walk of the module tree, which keeps the path of requests around the current module, outermost first. The
// innermost request around several modules is the last one that their paths have in common.
#include "fsdp/fsdp/wrap/shared_parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/wrap/partition.h"

namespace fsdp {
namespace {

using RequestPath = std::vector<size_t>;

// An occurrence of a parameter.
struct Place {
  std::string name;  // there
  RequestPath around;
};

class PlaceFinder {
 public:
  PlaceFinder(const std::vector<UnitRequest>& requests, const IgnoredStates& ignored) : ignored_(ignored) {
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const Module* module : requests[i].modules) request_of_.emplace(module, i);
    }
  }

  void Descend(const Module& module, const std::string& path) {
    const auto request = request_of_.find(&module);
    if (request != request_of_.end()) {
      // Copied into each place, because the path changes during the walk.
      around_.push_back(request->second);
      name_of_.emplace(request->second, path.empty() ? "root" : path);
    }
    const std::string prefix = path.empty() ? "" : absl::StrCat(path, ".");
    for (const auto& [name, parameter] : module.own_parameters()) {
      if (!ignored_.contains(*parameter)) places_[parameter.get()].push_back({prefix + name, around_});
    }
    for (const auto& [name, child] : module.children()) Descend(*child, prefix + name);
    if (request != request_of_.end()) around_.pop_back();
  }

  const std::map<const Parameter*, std::vector<Place>>& places() const { return places_; }
  const std::string& NameOf(size_t request) const { return name_of_.at(request); }

 private:
  const IgnoredStates& ignored_;
  std::map<const Module*, size_t> request_of_;
  std::map<size_t, std::string> name_of_;
  std::map<const Parameter*, std::vector<Place>> places_;
  RequestPath around_;
};

RequestPath CommonPath(const std::vector<Place>& places) {
  RequestPath common = places[0].around;
  for (const Place& place : places) {
    const size_t size = std::min(common.size(), place.around.size());
    common.resize(std::mismatch(common.begin(), common.begin() + size, place.around.begin()).first - common.begin());
  }
  return common;
}

}  // namespace

void SharedParameters::LeaveOut(size_t index) {
  // The plain module around the roots is not a unit, so nothing moves to it.
  for (auto it = moved.begin(); it != moved.end();) {
    if (it->second == index) warnings.erase(it->first);
    it = it->second == index ? moved.erase(it) : std::next(it);
  }
}

void SharedParameters::Warn(std::vector<std::string>& messages) const {
  std::vector<std::string> sorted;
  for (const auto& [parameter, warning] : warnings) sorted.push_back(warning);
  // The map is ordered by address, which differs from rank to rank.
  std::sort(sorted.begin(), sorted.end());
  messages.insert(messages.end(), sorted.begin(), sorted.end());
}

absl::StatusOr<SharedParameters> SharedAcrossUnits(Module& root, const std::vector<UnitRequest>& requests,
                                                   const IgnoredStates& ignored) {
  PlaceFinder finder(requests, ignored);
  finder.Descend(root, "");
  SharedParameters shared;
  for (const auto& [parameter, places] : finder.places()) {
    const RequestPath common = CommonPath(places);
    const auto inside = [&](const Place& place) { return place.around.size() > common.size(); };
    // An empty common path, or no place inside a further request: the parameter needs no move.
    if (common.empty() || std::none_of(places.begin(), places.end(), inside)) continue;
    for (const Place& place : places) {
      for (size_t i = common.size(); i < place.around.size(); ++i) {
        const UnitOverrides& own = requests[place.around[i]].overrides;
        if (!own.mixed_precision.has_value() && !own.keep_full_precision) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter \"", parameter->fqn, "\" is shared across units: \"", place.name, "\" is in unit ",
            finder.NameOf(place.around[i]), ", which has a precision of its own, and the innermost unit around all of ",
            "its places is ", finder.NameOf(common.back()), ": expected one precision; leave the precision of ",
            finder.NameOf(place.around[i]), " to the model"));
      }
    }
    shared.moved[parameter] = common.back();
    // `places` is in the order of the walk, so the first is the parameter's own name.
    shared.warnings[parameter] =
        absl::StrCat("parameter \"", parameter->fqn, "\" is shared across units, also as \"", places.back().name,
                     "\": it is in unit ", finder.NameOf(common.back()),
                     ", the innermost around all of its places, and stays unsharded as long as that unit does");
  }
  return shared;
}

}  // namespace fsdp
