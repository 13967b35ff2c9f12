// SPDX-License-Identifier: Apache-2.0
//
// Partition: which modules are units and which parameters belong to each, by name and in order; no memory, no ranks. A
// unit has the parameters of its modules that no unit further inside has and that are not ignored.
#ifndef FSDP_FSDP_WRAP_PARTITION_H_
#define FSDP_FSDP_WRAP_PARTITION_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/wrap/ignored_states.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// A unit that is asked for: of one module, or of several whose parameters are gathered and reduced as one (FSDP2).
struct UnitRequest {
  std::vector<Module*> modules;
  UnitOverrides overrides = {};
};

// One unit before it has memory.
struct UnitModule {
  std::string name;  // the module's path, the first one's of several; "" for the root
  Module* module = nullptr;
  std::vector<Module*> modules;  // `module` and the others of its request
  std::vector<Module*>
      own_modules;  // they and all below, breadth first, but for those of units inside and ignored ones
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

  // Parameters that no unit has, by each of their names: the ignored ones.
  std::vector<Module::NamedParameter> unmanaged;

  // Buffers of modules that are not ignored, shared ones once.
  std::vector<std::shared_ptr<ModuleBuffer>> buffers;

  // What is legal but surprising, for people to read.
  std::vector<std::string> warnings;

  // Cuts `root`, whose parameters are named, at `requests`, of which one is of the root. kInvalidArgument, by name, for
  // a parameter shared across units.
  static absl::StatusOr<Partition> Of(Module& root, const std::vector<UnitRequest>& requests,
                                      const IgnoredStates& ignored);

  // FSDP1's: the root and what options.auto_wrap_policy picks, without what the options ignore. kInvalidArgument also
  // where ResolveIgnoredStates and AutoWrap say so, and, by name, for frozen beside trainable parameters in one unit
  // without use_orig_params.
  static absl::StatusOr<Partition> ByPolicy(Module& root, const FsdpOptions& options);
};

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_PARTITION_H_
