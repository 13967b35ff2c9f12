// SPDX-License-Identifier: Apache-2.0
#include "fsdp/partition.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdp {
namespace {

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// Walks the tree of modules, parents first.
class Partitioner {
 public:
  Partitioner(Module& root, const WrapPolicy& policy) {
    wrapped_.emplace(&root, UnitOverrides());
    for (WrapPolicy::Selected& selected : policy.Apply(root)) {
      wrapped_.emplace(selected.module, std::move(selected.overrides));
    }
  }

  absl::Status Descend(Module& module, const std::string& path, int enclosing) {
    int unit = enclosing;
    const auto wrapped = wrapped_.find(&module);
    const bool is_unit = wrapped != wrapped_.end() && OwnsParameters(module);
    if (is_unit) {
      unit = static_cast<int>(made_.units.size());
      made_.units.push_back({.name = path, .module = &module, .parameters = {}, .overrides = wrapped->second});
      made_.registration_order.push_back({unit, /*enter=*/true});
    }
    RETURN_IF_ERROR(AdoptParameters(module, path, unit));
    for (const auto& [name, child] : module.children()) {
      RETURN_IF_ERROR(Descend(*child, Join(path, name), unit));
    }
    if (is_unit) made_.registration_order.push_back({unit, /*enter=*/false});
    return absl::OkStatus();
  }

  Partition Take() { return std::move(made_); }

 private:
  // True when some parameter below `module` lies in no wrapped module further inside.
  bool OwnsParameters(const Module& module) const {
    if (!module.own_parameters().empty()) return true;
    for (const auto& [name, child] : module.children()) {
      if (wrapped_.count(child.get()) == 0 && OwnsParameters(*child)) return true;
    }
    return false;
  }

  absl::Status AdoptParameters(Module& module, const std::string& path, int unit) {
    for (const auto& [name, parameter] : module.own_parameters()) {
      const auto [known, added] = unit_of_.emplace(parameter.get(), unit);
      if (added) {
        made_.units[unit].parameters.push_back(parameter);
      } else if (known->second != unit) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter \"", parameter->fqn, "\" is shared across units: \"", Join(path, name),
                         "\" lies in unit ", made_.units[unit].display_name(), ", its first name in unit ",
                         made_.units[known->second].display_name(), "; wrap a module that holds both"));
      }
    }
    return absl::OkStatus();
  }

  std::map<const Module*, UnitOverrides> wrapped_;
  std::map<const Parameter*, int> unit_of_;
  Partition made_;
};

}  // namespace

absl::StatusOr<Partition> Partition::Of(Module& root, const WrapPolicy& policy) {
  Partitioner partitioner(root, policy);
  RETURN_IF_ERROR(partitioner.Descend(root, "", /*enclosing=*/-1));
  Partition partition = partitioner.Take();
  for (const auto& [name, parameter] : root.NamedParameters()) {
    if (name != parameter->fqn) partition.aliases[name] = parameter->fqn;
  }
  return partition;
}

}  // namespace fsdp
