// SPDX-License-Identifier: Apache-2.0
//
// Partition: which modules are units and which parameters belong to each, by name and in order; no memory, no ranks. A
// unit has the parameters of its module that no unit further inside has.
#ifndef FSDP_FSDP_PARTITION_H_
#define FSDP_FSDP_PARTITION_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/schedule.h"
#include "fsdp/unit_options.h"
#include "fsdp/wrap_policy.h"
#include "nn/module.h"

namespace fsdp {

// One unit before it has memory.
struct UnitModule {
  std::string name;  // the module's path; "" for the root
  Module* module = nullptr;
  std::vector<std::shared_ptr<Parameter>> parameters;  // in the order of the flat parameter, shared ones once
  UnitOverrides overrides;

  // "root" or the module's path, as schedules name it.
  std::string display_name() const { return name.empty() ? "root" : name; }
};

struct Partition {
  // Parents first, as modules are named, so the root is first. Modules to wrap that have no parameters of their own are
  // left out, the root too.
  std::vector<UnitModule> units;

  // The order in which a forward pass visits units if modules run as they are registered.
  std::vector<UnitVisit> registration_order;

  // Further names of shared parameters, to their first.
  std::map<std::string, std::string> aliases;

  // Cuts `root`, whose parameters are named, at the modules that `policy` picks. kInvalidArgument, by name, for a
  // parameter shared across units.
  static absl::StatusOr<Partition> Of(Module& root, const WrapPolicy& policy);
};

}  // namespace fsdp

#endif  // FSDP_FSDP_PARTITION_H_
