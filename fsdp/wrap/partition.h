// SPDX-License-Identifier: Apache-2.0
//
// Partition: which modules are units and which parameters belong to each, by name and in order. It knows no memory and
// no ranks. A unit has the parameters of its modules and below, except the parameters of units further inside and
// ignored ones.
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
#include "fsdp/fsdp/wrap/shared_parameters.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// A request for a unit: of one module, or of several whose parameters are gathered and reduced together (FSDP2).
struct UnitRequest {
  std::vector<Module*> modules;
  UnitOverrides overrides = {};
};

// One unit before it has memory.
struct UnitModule {
  std::string name;  // the path of the module, of several modules the first; "" for the root
  Module* module = nullptr;
  std::vector<Module*> modules;  // `module` and the others of its request
  // `modules` and all below, breadth first, without modules of units inside and ignored ones.
  std::vector<Module*> own_modules;
  std::vector<std::shared_ptr<Parameter>> parameters;  // in the order of the flat parameter, shared ones once
  UnitOverrides overrides;

  // A root of PyTorch's: the model's own module, or one of several below a plain module.
  bool is_root = false;

  // "root" or the module's path, as schedules name it.
  std::string display_name() const { return name.empty() ? "root" : name; }
};

struct Partition {
  // Parents before children, in the order in which modules are named, so the root is first. Modules without own
  // parameters are not units even if they were requested; this includes the root.
  std::vector<UnitModule> units;

  // The modules that were requested and are not units. Indices of modules count them after `units`.
  std::vector<UnitModule> bare;

  // The order in which a forward visits units and bare modules if modules run in the order in which they are
  // registered.
  std::vector<UnitVisit> registration_order;

  // Maps further names of shared parameters to the first name of each.
  std::map<std::string, std::string> aliases;

  // Ignored parameters, which no unit has, under each of their names.
  std::vector<Module::NamedParameter> unmanaged;

  // Buffers of modules that are not ignored, shared ones once.
  std::vector<std::shared_ptr<ModuleBuffer>> buffers;

  // Messages for people about legal but surprising properties.
  std::vector<std::string> warnings;

  // Cuts `root` at `requests`, one of which is for the root. The parameters must have names (Module::AssignNames). A
  // parameter in `moved` (SharedAcrossUnits) goes to the request that it is mapped to; kInvalidArgument for any other
  // that is shared across units, with both of its names.
  static absl::StatusOr<Partition> Of(Module& root, const std::vector<UnitRequest>& requests,
                                      const IgnoredStates& ignored, const MovedParameters& moved = {});

  // FSDP1's partition: the root and the modules that options.auto_wrap_policy selects or WrapModule marked, without the
  // ignored modules. A parameter that modules of several units have belongs to the innermost unit around all of them,
  // with a warning. kInvalidArgument if a unit inside that one has it and a precision of its own, for the errors of
  // ResolveIgnoredStates and AutoWrap, and for a unit with both frozen and trainable parameters without
  // use_orig_params, naming all of them.
  static absl::StatusOr<Partition> ByPolicy(Module& root, const FsdpOptions& options);

  // The same with `root` as a plain module: the units are the modules that WrapModule marked, and the outermost ones
  // are roots. `root` itself is bare, so that its forward and backward are the passes. Parameters outside all units are
  // ignored. kInvalidArgument if nothing is marked, for a mark on `root`, for an auto_wrap_policy, and for a parameter
  // that two roots share.
  static absl::StatusOr<Partition> BelowPlain(Module& root, const FsdpOptions& options);
};

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_PARTITION_H_
