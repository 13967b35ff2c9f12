// SPDX-License-Identifier: Apache-2.0
//
// FullyShard only checks and marks: everything that needs the whole model or other ranks happens at the root's first
// use (fsdp_module_tree.cc). So it is local. It makes all checks that need only this module, because here the caller
// knows which module is wrong.
#include "fsdp/fsdp/fully_shard.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/shard_placement.h"
#include "fsdp/fsdp/units/unit_streams.h"

namespace fsdp {
namespace {

absl::Status CheckModule(const Module& module) {
  const std::string type_name(module.type_name());
  if (!module.has_forward()) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard of a ", type_name, ": expected a module with a forward; apply it to the children"));
  }
  // Hooks mark a module that FullyShard or Wrap already has.
  if (module.hooks() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard of a ", type_name, " that has been sharded already: expected one call per module"));
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const Parameter& parameter, const std::string& name, const FullyShardOptions& options,
                            int ranks) {
  if (parameter.shape.rank() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", name,
                                                   "\" is a scalar, which has no dimension to cut: "
                                                   "expected a tensor of shape [1]"));
  }
  if (parameter.requires_grad && !IsFloatingPoint(parameter.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", name, "\" is ", std::string(DTypeName(parameter.dtype)),
                     " and requires a gradient: expected a floating-point dtype, or requires_grad off"));
  }
  return ShardDimOf(options.shard_placement_fn, parameter, name, ranks).status();
}

// Checks the parameters of `module` and below that no inner unit has: a module that has hooks is a unit already.
absl::Status CheckParameters(const Module& module, const std::string& path, const FullyShardOptions& options,
                             const std::set<const Parameter*>& ignored, int ranks) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    if (ignored.count(parameter.get()) == 0)
      FSDP_RETURN_IF_ERROR(CheckPlacement(*parameter, path + name, options, ranks));
  }
  for (const auto& [name, child] : module.children()) {
    if (child->hooks() == nullptr)
      FSDP_RETURN_IF_ERROR(CheckParameters(*child, path + name + ".", options, ignored, ranks));
  }
  return absl::OkStatus();
}

absl::Status CheckMesh(const DeviceMesh* mesh, const FullyShardOptions& options) {
  if (mesh == nullptr) return absl::InvalidArgumentError("FullyShard: mesh is null: expected one of 1 or 2 dimensions");
  if (mesh->ndim() > 2) {
    return absl::InvalidArgumentError(absl::StrCat("FullyShard expects a 1D or 2D DeviceMesh but got ",
                                                   mesh->ToString(),
                                                   ": DeviceMesh::Submesh takes dimensions from a larger mesh"));
  }
  if (const int* k = std::get_if<int>(&options.reshard_after_forward)) {
    // The mesh's last dimension shards; on two dimensions the first one replicates.
    const int ranks = mesh->group(mesh->ndim() - 1)->size();
    if (*k < 1 || *k > ranks || ranks % *k != 0) {
      return absl::InvalidArgumentError(absl::StrCat("reshard_after_forward=", *k,
                                                     ": expected a divisor of the shard "
                                                     "group's ",
                                                     ranks, " ranks"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckListed(const std::vector<Module*>& modules, size_t index) {
  if (modules[index] == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard: modules[", index, "] of ", modules.size(), " is null: expected modules"));
  }
  const size_t first = std::find(modules.begin(), modules.end(), modules[index]) - modules.begin();
  if (first == index) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("FullyShard: modules[", index, "], a ",
                                                 std::string(modules[index]->type_name()), ", is modules[", first,
                                                 "] again: expected each module once"));
}

absl::Status CheckShares(const std::vector<FsdpModule*>& roots, size_t index) {
  const std::string which = absl::StrCat("ShareCommCtx: roots[", index, "] of ", roots.size());
  const FsdpModule* root = roots[index];
  if (root == nullptr) return absl::InvalidArgumentError(which + " is null: expected the results of FullyShard");
  const std::string named = absl::StrCat(which, ", a ", std::string(root->modules()[0]->type_name()), ",");
  if (root->was_used() && !root->is_root()) {
    return absl::FailedPreconditionError(named + " is below another root: expected roots");
  }
  // A used root has its streams for good, so it can only lend them: it must be the first of the list, or share already.
  if (root->was_used() && index > 0 && !root->SharesStreamsWith(*roots[0])) {
    return absl::FailedPreconditionError(named +
                                         " has been used and has streams of its own: share before its first "
                                         "use, or list it first");
  }
  Device& device = *root->mesh()->all()->device();
  Device& first = *roots[0]->mesh()->all()->device();
  if (&device == &first) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(named, " is on another device (", device.name(), ") than roots[0] (",
                                                 first.name(), "): expected one device"));
}

}  // namespace

absl::StatusOr<FsdpModule*> FullyShard(Module& module, std::shared_ptr<const DeviceMesh> mesh,
                                       const FullyShardOptions& options) {
  return FullyShard(std::vector<Module*>{&module}, std::move(mesh), options);
}

absl::StatusOr<FsdpModule*> FullyShard(const std::vector<Module*>& modules, std::shared_ptr<const DeviceMesh> mesh,
                                       const FullyShardOptions& options) {
  if (modules.empty()) return absl::InvalidArgumentError("FullyShard: no modules: expected at least one");
  FSDP_RETURN_IF_ERROR(Validate(options));
  FSDP_RETURN_IF_ERROR(CheckMesh(mesh.get(), options));
  const int ranks = mesh->group(mesh->ndim() - 1)->size();
  std::set<const Parameter*> ignored;
  for (const auto& parameter : options.ignored_params) ignored.insert(parameter.get());
  // All checks before the first module is marked, so that an error changes nothing.
  for (size_t i = 0; i < modules.size(); ++i) {
    FSDP_RETURN_IF_ERROR(CheckListed(modules, i));
    FSDP_RETURN_IF_ERROR(CheckModule(*modules[i]));
    FSDP_RETURN_IF_ERROR(CheckParameters(*modules[i], "", options, ignored, ranks));
  }
  // Shared by all modules of the unit: each holds it as its extension.
  auto made = std::make_shared<FsdpModule>(modules, std::move(mesh), options);
  for (Module* module : modules) {
    module->set_extension(made);
    module->set_hooks(made->hooks());
  }
  return made.get();
}

absl::Status ShareCommCtx(const std::vector<FsdpModule*>& roots) {
  for (size_t i = 0; i < roots.size(); ++i) FSDP_RETURN_IF_ERROR(CheckShares(roots, i));
  if (roots.empty()) return absl::OkStatus();
  // Null until the first root is used or has shared; then these streams become its own at its first use.
  std::shared_ptr<UnitStreams> streams = roots[0]->streams();
  if (streams == nullptr) {
    FSDP_ASSIGN_OR_RETURN(streams, UnitStreams::Create(*roots[0]->mesh()->all()->device()));
  }
  for (FsdpModule* root : roots) root->streams_ = streams;
  return absl::OkStatus();
}

}  // namespace fsdp
