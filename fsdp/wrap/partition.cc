// SPDX-License-Identifier: Apache-2.0
//
// One walk of the module tree, parents first. Each module's parameters go to the innermost unit around it, so entering
// an inner unit takes its parameters away from the outer one. The walk also is a forward in the order of registration,
// so its entries and exits of units are the first order of execution.
//
// A parameter belongs to the unit under whose module it is met first, or to the one that it was moved to
// (shared_parameters.h). If it is met again in another unit, that is an error, because it would have two flat
// parameters and two gradients.
#include "fsdp/fsdp/wrap/partition.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/wrap/auto_wrap.h"
#include "fsdp/fsdp/wrap/manual_wrap.h"

namespace fsdp {
namespace {

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// Walks the tree of modules, parents first.
class Partitioner {
 public:
  Partitioner(const std::vector<UnitRequest>& requests, const IgnoredStates& ignored, const MovedParameters& moved)
      : requests_(requests), ignored_(ignored), moved_(moved) {
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const Module* module : requests[i].modules) request_of_.emplace(module, i);
    }
  }

  absl::Status Descend(Module& module, const std::string& path, int enclosing) {
    const int entered = Enter(module, path);
    // Modules below a bare module belong to the unit around it.
    const int unit = entered >= 0 ? entered : enclosing;
    const int bare = entered >= 0 ? -1 : EnterBare(module, path);
    FSDP_RETURN_IF_ERROR(AdoptParameters(module, path, unit));
    if (!ignored_.contains(module)) AdoptBuffers(module);
    for (const auto& [name, child] : module.children()) {
      FSDP_RETURN_IF_ERROR(Descend(*child, Join(path, name), unit));
    }
    // A unit of several modules is left when the last of them is.
    if (entered >= 0 && --modules_left_[entered] == 0) {
      made_.registration_order.push_back({entered, /*enter=*/false});
    }
    if (bare >= 0 && --bare_modules_left_[bare] == 0) made_.registration_order.push_back({~bare, /*enter=*/false});
    return absl::OkStatus();
  }

  // Bare modules are visited as ~index until the number of units is known.
  Partition Take() {
    for (UnitVisit& visit : made_.registration_order) {
      if (visit.unit < 0) visit.unit = static_cast<int>(made_.units.size()) + ~visit.unit;
    }
    return std::move(made_);
  }

 private:
  // The unit that was requested for `module`; made when the walk meets its first module. -1 if none was requested, or
  // if it would have no parameters.
  int Enter(Module& module, const std::string& path) {
    const auto requested = request_of_.find(&module);
    if (requested == request_of_.end()) return -1;
    const UnitRequest& request = requests_[requested->second];
    const auto known = unit_of_request_.find(requested->second);
    if (known != unit_of_request_.end()) return known->second;
    const size_t index = requested->second;
    // A request that gets moved parameters is a unit even if its modules have no own ones.
    const bool is_given = std::any_of(moved_.begin(), moved_.end(), [&](const auto& to) { return to.second == index; });
    if (!is_given && std::none_of(request.modules.begin(), request.modules.end(),
                                  [&](const Module* one) { return OwnsParameters(*one); })) {
      return -1;
    }
    const int unit = static_cast<int>(made_.units.size());
    unit_of_request_[requested->second] = unit;
    modules_left_.push_back(static_cast<int>(request.modules.size()));
    made_.units.push_back({path, &module, request.modules, OwnModules(request), {}, request.overrides});
    made_.registration_order.push_back({unit, /*enter=*/true});
    return unit;
  }

  // The index in `bare` of the request for `module`, which is not a unit; -1 if nothing was requested.
  int EnterBare(Module& module, const std::string& path) {
    const auto requested = request_of_.find(&module);
    if (requested == request_of_.end()) return -1;
    const auto [known, added] = bare_of_request_.emplace(requested->second, static_cast<int>(made_.bare.size()));
    if (added) {
      const UnitRequest& request = requests_[requested->second];
      made_.bare.push_back({path, &module, request.modules, {}, {}, request.overrides});
      bare_modules_left_.push_back(static_cast<int>(request.modules.size()));
      made_.registration_order.push_back({~known->second, /*enter=*/true});
    }
    return known->second;
  }

  // True if some parameter of `module` and below is in no unit further inside, and was not moved.
  bool OwnsParameters(const Module& module) const {
    for (const auto& [name, parameter] : module.own_parameters()) {
      if (!ignored_.contains(*parameter) && moved_.count(parameter.get()) == 0) return true;
    }
    for (const auto& [name, child] : module.children()) {
      if (request_of_.count(child.get()) == 0 && OwnsParameters(*child)) return true;
    }
    return false;
  }

  // Stops at requests and ignored modules: what is below those is theirs.
  std::vector<Module*> OwnModules(const UnitRequest& request) const {
    std::vector<Module*> own = request.modules;
    for (size_t i = 0; i < own.size(); ++i) {
      for (const auto& [name, child] : own[i]->children()) {
        if (request_of_.count(child.get()) == 0 && !ignored_.contains(*child)) own.push_back(child.get());
      }
    }
    return own;
  }

  absl::Status AdoptParameters(Module& module, const std::string& path, int unit_around) {
    for (const auto& [name, parameter] : module.own_parameters()) {
      if (ignored_.contains(*parameter)) {
        made_.unmanaged.emplace_back(Join(path, name), parameter);
        continue;
      }
      const auto moved = moved_.find(parameter.get());
      const int unit = moved == moved_.end() ? unit_around : unit_of_request_.at(moved->second);
      const auto [known, added] = unit_of_.emplace(parameter.get(), unit);
      if (added) {
        made_.units[unit].parameters.push_back(parameter);
      } else if (known->second != unit) {
        // SharedAcrossUnits has moved the parameters that may be shared; any other is an error.
        return absl::InvalidArgumentError(
            absl::StrCat("parameter \"", parameter->fqn, "\" is shared across units: \"", Join(path, name),
                         "\" is in unit ", made_.units[unit].display_name(), ", its first name in unit ",
                         made_.units[known->second].display_name(), "; wrap a module that holds both"));
      }
    }
    return absl::OkStatus();
  }

  void AdoptBuffers(const Module& module) {
    for (const auto& [name, buffer] : module.own_buffers()) {
      // Linear, because models have few buffers; a shared buffer is listed once.
      if (std::find(made_.buffers.begin(), made_.buffers.end(), buffer) == made_.buffers.end()) {
        made_.buffers.push_back(buffer);
      }
    }
  }

  const std::vector<UnitRequest>& requests_;
  const IgnoredStates& ignored_;
  const MovedParameters& moved_;
  std::map<const Module*, size_t> request_of_;
  std::map<size_t, int> unit_of_request_;
  std::map<const Parameter*, int> unit_of_;
  std::map<size_t, int> bare_of_request_;
  std::vector<int> modules_left_;  // by unit: how many of its modules the walk has not left yet
  std::vector<int> bare_modules_left_;
  Partition made_;
};

std::string NamesOf(const UnitModule& unit, bool requires_grad) {
  std::vector<std::string> names;
  for (const auto& parameter : unit.parameters) {
    if (parameter->requires_grad == requires_grad) names.push_back(parameter->fqn);
  }
  return absl::StrJoin(names, ", ");
}

// True if more than half of the elements are trained, so that the unit's gradients are laid out whole
// (fsdp/units/unit_gradients.cc).
bool IsMostlyTrained(const UnitModule& unit) {
  int64_t all = 0, trained = 0;
  for (const auto& parameter : unit.parameters) {
    all += parameter->shape.numel();
    if (parameter->requires_grad) trained += parameter->shape.numel();
  }
  return 2 * trained > all;
}

// PyTorch's _validate_frozen_params: innermost units first, so the error names the first such unit in registration
// order.
absl::Status CheckFrozen(bool use_orig_params, Partition& partition) {
  for (const UnitVisit& visit : partition.registration_order) {
    if (visit.enter || visit.unit >= static_cast<int>(partition.units.size())) continue;
    const UnitModule& unit = partition.units[visit.unit];
    const std::string frozen = NamesOf(unit, false), trainable = NamesOf(unit, true);
    if (frozen.empty() || trainable.empty()) continue;
    const std::string both =
        absl::StrCat("unit ", unit.display_name(), " has parameters with and without requires_grad; with: ", trainable,
                     "; without: ", frozen);
    if (!use_orig_params) {
      return absl::InvalidArgumentError(
          absl::StrCat(both, ": expected one kind in a unit; wrap them apart or set use_orig_params"));
    }
    if (!IsMostlyTrained(unit)) continue;
    partition.warnings.push_back(absl::StrCat(both, ": its gradients take the memory of all of them"));
  }
  return absl::OkStatus();
}

void WarnOfContainers(Partition& partition) {
  for (const UnitModule& unit : partition.units) {
    if (unit.module->has_forward()) continue;
    partition.warnings.push_back(absl::StrCat("unit ", unit.display_name(), " is a ",
                                              std::string(unit.module->type_name()),
                                              ", which has no forward: its parameters are never all-gathered"));
  }
}

void WarnOfFullPrecision(const std::vector<WrappedModule>& wrapped, Partition& partition) {
  std::set<std::string> classes;
  for (const WrappedModule& one : wrapped) {
    if (one.overrides.keep_full_precision) classes.insert(std::string(one.module->type_name()));
  }
  if (classes.empty()) return;
  partition.warnings.push_back(absl::StrCat("modules of these classes are units of their own without mixed precision: ",
                                            absl::StrJoin(classes, ", ")));
}

// The modules that WrapModule marked below `root`, parents first.
std::vector<UnitRequest> Marked(Module& root) {
  std::vector<UnitRequest> requests;
  for (const auto& [name, module] : root.NamedModules()) {
    const ManualWrap* mark = ManualWrap::Of(*module);
    if (mark != nullptr && module != &root) requests.push_back({{module}, mark->overrides()});
  }
  return requests;
}

// The outermost marked modules below `module`.
void AddRoots(const Module& module, std::set<const Module*>& roots) {
  for (const auto& [name, child] : module.children()) {
    if (ManualWrap::Of(*child) == nullptr) {
      AddRoots(*child, roots);
    } else {
      roots.insert(child.get());
    }
  }
}

absl::Status CheckPlain(const Module& root, const FsdpOptions& options, bool some_marked) {
  const std::string type_name(root.type_name());
  if (ManualWrap::Of(root) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("WrapRootsBelow of a ", type_name, " that WrapModule marked: expected a plain module; use Wrap"));
  }
  if (options.auto_wrap_policy) {
    return absl::InvalidArgumentError("WrapRootsBelow with an auto_wrap_policy: expected units that WrapModule marked");
  }
  if (some_marked) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("WrapRootsBelow of a ", type_name, ": no module below it was marked: call WrapModule first"));
}

}  // namespace

absl::StatusOr<Partition> Partition::Of(Module& root, const std::vector<UnitRequest>& requests,
                                        const IgnoredStates& ignored, const MovedParameters& moved) {
  Partitioner partitioner(requests, ignored, moved);
  FSDP_RETURN_IF_ERROR(partitioner.Descend(root, "", /*enclosing=*/-1));
  Partition partition = partitioner.Take();
  // NamedParameters lists every place of a shared parameter; fqn is the first.
  for (const auto& [name, parameter] : root.NamedParameters()) {
    if (name != parameter->fqn) partition.aliases[name] = parameter->fqn;
  }
  return partition;
}

absl::StatusOr<Partition> Partition::BelowPlain(Module& root, const FsdpOptions& options) {
  std::vector<UnitRequest> requests = Marked(root);
  FSDP_RETURN_IF_ERROR(CheckPlain(root, options, !requests.empty()));
  FSDP_ASSIGN_OR_RETURN(IgnoredStates ignored, ResolveIgnoredStates(root, options));
  // Everything outside the marks is ignored; IgnoreSubtree stops at marked modules.
  IgnoreSubtree(root, ignored);
  // Last, so that its index is known: shared parameters of several roots stay out of it.
  requests.push_back({.modules = {&root}});
  FSDP_ASSIGN_OR_RETURN(SharedParameters shared, SharedAcrossUnits(root, requests, ignored));
  shared.LeaveOut(requests.size() - 1);
  FSDP_ASSIGN_OR_RETURN(Partition partition, Of(root, requests, ignored, shared.moved));
  shared.Warn(partition.warnings);
  FSDP_RETURN_IF_ERROR(CheckFrozen(options.use_orig_params, partition));
  std::set<const Module*> roots;
  AddRoots(root, roots);
  for (UnitModule& unit : partition.units) unit.is_root = roots.count(unit.module) != 0;
  for (UnitModule& bare : partition.bare) bare.is_root = roots.count(bare.module) != 0;
  return partition;
}

absl::StatusOr<Partition> Partition::ByPolicy(Module& root, const FsdpOptions& options) {
  if (ManualWrap::Of(root) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the ", std::string(root.type_name()),
                                                   " was marked by WrapModule: expected marks only below the root, "
                                                   "which has the model's options"));
  }
  FSDP_ASSIGN_OR_RETURN(const IgnoredStates ignored, ResolveIgnoredStates(root, options));
  FSDP_ASSIGN_OR_RETURN(const std::vector<WrappedModule> wrapped, AutoWrap(root, options, ignored));
  std::vector<UnitRequest> requests = Marked(root);  // none, if there is a policy
  // First, so that the root is unit 0.
  requests.insert(requests.begin(), {.modules = {&root}});
  for (const WrappedModule& one : wrapped) requests.push_back({{one.module}, one.overrides});
  FSDP_ASSIGN_OR_RETURN(const SharedParameters shared, SharedAcrossUnits(root, requests, ignored));
  FSDP_ASSIGN_OR_RETURN(Partition partition, Of(root, requests, ignored, shared.moved));
  shared.Warn(partition.warnings);
  for (UnitModule& unit : partition.units) unit.is_root = unit.module == &root;
  for (UnitModule& bare : partition.bare) bare.is_root = bare.module == &root;
  FSDP_RETURN_IF_ERROR(CheckFrozen(options.use_orig_params, partition));
  if (ignored.contains(root)) partition.warnings.push_back("the wrapped module is ignored itself: nothing is managed");
  WarnOfContainers(partition);
  WarnOfFullPrecision(wrapped, partition);
  return partition;
}

}  // namespace fsdp
