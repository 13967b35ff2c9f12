// SPDX-License-Identifier: Apache-2.0
//
// FullyShard is called on modules one by one, innermost first, and knows no model; PyTorch's name for the moment when
// the parts become one is lazy initialisation. Here it is FsdpModuleTree::Create: find all FsdpModules below, check
// that they agree on one mesh, name the parameters, cut them into units (Partition), give these memory (UnitStore),
// apply the controls that were set so far, and let an Executor take the hooks over. After that each FsdpModule knows
// its root and unit.
#include "fsdp/fsdp/fsdp_module_tree.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/wrap/ignored_states.h"
#include "fsdp/fsdp/wrap/partition.h"

namespace fsdp {
namespace {

// `root` and the FsdpModules below it, outermost first, each once.
std::vector<FsdpModule*> MembersOf(FsdpModule& root) {
  std::vector<FsdpModule*> members;
  for (Module* module : root.modules()) {
    for (const auto& [name, below] : module->NamedModules()) {
      FsdpModule* member = FsdpModule::Of(*below);
      if (member != nullptr && std::count(members.begin(), members.end(), member) == 0) members.push_back(member);
    }
  }
  return members;
}

std::string NameIn(Module& root, const Module& module) {
  for (const auto& [name, below] : root.NamedModules()) {
    if (below == &module) return name.empty() ? "root" : name;
  }
  // A module of a unit of several modules may be outside the root.
  return absl::StrCat(std::string(module.type_name()), " outside of the root");
}

// The list in the form that ranks compare.
std::string NamesIn(Module& root, const std::optional<std::vector<FsdpModule*>>& modules) {
  if (!modules.has_value()) return "default";
  std::vector<std::string> names;
  for (const FsdpModule* module : *modules) names.push_back(NameIn(root, *module->modules()[0]));
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

// FSDP2's rules of precedence. Resharding uses a group of all ranks or of one anyway, so only sizes in between make a
// post-forward group.
UnitSettings SettingsOf(const FsdpModule& module) {
  const FullyShardOptions& options = module.options();
  const DeviceMesh& mesh = *module.mesh();
  UnitSettings settings;
  settings.sharding_strategy = mesh.ndim() == 2 ? ShardingStrategy::kHybridShard : ShardingStrategy::kFullShard;
  settings.layout = LayoutKind::kDim0;
  settings.shard_placement_fn = options.shard_placement_fn;
  settings.gradient_rules = GradientRules::kFsdp2;
  settings.offload = options.offload_policy;
  settings.activation_checkpointing = options.activation_checkpointing;
  settings.optimizer_casts = options.optimizer_casts;
  ApplyPolicy(options.mp_policy, settings);
  const int* ranks = std::get_if<int>(&options.reshard_after_forward);
  const int all = mesh.group(mesh.ndim() - 1)->size();
  if (ranks != nullptr && *ranks > 1 && *ranks < all) settings.post_forward_group_size = *ranks;
  return settings;
}

// -1 if it has no parameters.
int UnitOf(const FsdpModule& member, const UnitStore& units) {
  int unit = -1;
  for (const Module* module : member.modules()) unit = std::max(unit, units.IndexOf(*module));
  return unit;
}

std::optional<std::vector<int>> UnitsOf(const std::optional<std::vector<FsdpModule*>>& modules,
                                        const UnitStore& units) {
  if (!modules.has_value()) return std::nullopt;
  std::vector<int> indices;
  for (const FsdpModule* module : *modules) {
    if (UnitOf(*module, units) >= 0) indices.push_back(UnitOf(*module, units));
  }
  return indices;
}

void SetControls(const FsdpModule& module, const UnitStore& units) {
  const int unit = UnitOf(module, units);
  if (unit < 0) return;
  UnitControls& controls = units.unit(unit).controls;
  // The module's are the originals: setters may have run before the tree was made.
  controls = module.controls();
  controls.forward_prefetch = UnitsOf(module.forward_prefetch(), units);
  controls.backward_prefetch = UnitsOf(module.backward_prefetch(), units);
  for (Unit* group : units.unit(unit).dtype_groups) group->controls = controls;
}

}  // namespace

FsdpModuleTree::FsdpModuleTree(FsdpModule& root, std::vector<FsdpModule*> members)
    : root_(root), module_(*root.modules()[0]), members_(std::move(members)) {}

absl::StatusOr<std::unique_ptr<FsdpModuleTree>> FsdpModuleTree::Create(FsdpModule& root) {
  std::unique_ptr<FsdpModuleTree> made(new FsdpModuleTree(root, MembersOf(root)));
  made->module_.AssignNames();
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*root.mesh()->all(), made->CheckMembers()));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<UnitStore> units, made->CreateUnits());
  for (const FsdpModule* member : made->members_) SetControls(*member, *units);
  FSDP_ASSIGN_OR_RETURN(made->model_, ShardedModel::Create(made->module_, std::move(units),
                                                           {.passes_below_root = true, .streams = root.streams()}));
  for (FsdpModule* member : made->members_) member->JoinRoot(made.get(), UnitOf(*member, made->model_->units()));
  return made;
}

absl::Status FsdpModuleTree::CheckMembers() const {
  if (root_.modules().size() != 1) {
    return absl::FailedPreconditionError(absl::StrCat("a unit of ", root_.modules().size(),
                                                      " modules cannot be the root: "
                                                      "apply FullyShard to a module around them"));
  }
  for (const FsdpModule* member : members_) {
    const std::string name = NameIn(module_, *member->modules()[0]);
    if (member->is_root()) {
      return absl::FailedPreconditionError(absl::StrCat("module \"", name,
                                                        "\" has already been lazily initialized as "
                                                        "a root of its own: use the outermost module first"));
    }
    if (member->mesh()->all() != root_.mesh()->all() || member->mesh()->sizes() != root_.mesh()->sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("module \"", name, "\" is sharded over mesh ",
                                                     member->mesh()->ToString(), ", the root over ",
                                                     root_.mesh()->ToString(), ": expected one mesh"));
    }
    if (member->forward_prefetch().has_value()) {
      FSDP_RETURN_IF_ERROR(CheckPrefetch(*member, "modules_to_forward_prefetch", *member->forward_prefetch()));
    }
    if (member->backward_prefetch().has_value()) {
      FSDP_RETURN_IF_ERROR(CheckPrefetch(*member, "modules_to_backward_prefetch", *member->backward_prefetch()));
    }
  }
  return absl::OkStatus();
}

absl::Status FsdpModuleTree::CheckPrefetch(const FsdpModule& module, std::string_view list,
                                           const std::vector<FsdpModule*>& modules) const {
  for (size_t i = 0; i < modules.size(); ++i) {
    if (std::count(members_.begin(), members_.end(), modules[i]) != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(list), " of module \"", NameIn(module_, *module.modules()[0]), "\": [", i, "], a ",
        std::string(modules[i]->modules()[0]->type_name()), ", is not below the root: expected modules of one model"));
  }
  return absl::OkStatus();
}

// The members' settings before the root's first use; later changes are not compared.
RankAgreement FsdpModuleTree::AgreementOfMembers() const {
  RankAgreement agreement;
  for (const FsdpModule* member : members_) {
    const std::string of = absl::StrCat(" of module ", NameIn(module_, *member->modules()[0]));
    const std::optional<bool>& reshard = member->controls().reshard_after_forward;
    agreement.Add("reshard_after_forward" + of, reshard.has_value() ? TrueOrFalse(*reshard) : "default");
    const UnitControls& controls = member->controls();
    agreement.Add("reshard_after_backward" + of, TrueOrFalse(controls.reshard_after_backward));
    agreement.Add("unshard_in_backward" + of, TrueOrFalse(controls.unshard_in_backward));
    agreement.Add("requires_gradient_sync" + of, TrueOrFalse(controls.requires_gradient_sync));
    agreement.Add("requires_all_reduce" + of, TrueOrFalse(controls.requires_all_reduce));
    agreement.Add("symm_mem_for_comm" + of, TrueOrFalse(controls.symm_mem));
    agreement.Add("copy_engine_all_gather" + of, TrueOrFalse(controls.all_gather_group != nullptr));
    agreement.Add("separate_reduce_scatter_group" + of, TrueOrFalse(controls.reduce_scatter_group != nullptr));
    agreement.Add("modules_to_forward_prefetch" + of, NamesIn(module_, member->forward_prefetch()));
    agreement.Add("modules_to_backward_prefetch" + of, NamesIn(module_, member->backward_prefetch()));
  }
  return agreement;
}

absl::StatusOr<std::unique_ptr<UnitStore>> FsdpModuleTree::CreateUnits() const {
  std::vector<UnitRequest> requests;
  IgnoredStates ignored;
  for (const FsdpModule* member : members_) {
    requests.push_back({.modules = member->modules()});
    for (const auto& parameter : member->options().ignored_params) ignored.parameters.insert(parameter.get());
  }
  absl::StatusOr<Partition> partition = Partition::Of(module_, requests, ignored);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*root_.mesh()->all(), partition.status()));
  ModelSettings settings{.units = {}, .agreement = AgreementOfMembers()};
  for (const UnitModule& unit : partition->units) settings.units.push_back(SettingsOf(*FsdpModule::Of(*unit.module)));
  for (const UnitModule& bare : partition->bare) settings.bare.push_back(SettingsOf(*FsdpModule::Of(*bare.module)));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<UnitStore> units,
                        UnitStore::Create(*std::move(partition), settings, ShardGroups(root_.mesh()),
                                          {.seed = root_.options().init_seed}));
  units->set_trace(root_.options().trace);
  return units;
}

void FsdpModuleTree::Apply(const FsdpModule& module) { SetControls(module, model_->units()); }

}  // namespace fsdp
