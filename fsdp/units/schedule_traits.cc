// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/schedule_traits.h"

namespace fsdp {
namespace {

UnitTraits TraitsOf(const UnitStore& units, int index, bool sync) {
  const Unit& unit = units.unit(index);
  const UnitControls& controls = unit.controls;
  const bool fsdp2 = unit.settings.gradient_rules == GradientRules::kFsdp2;
  UnitTraits traits = UnitTraits::Of(unit.strategy, unit.settings.is_root || index == units.root_unit());
  // In a world of one FSDP1 calls its collective, and FSDP2 none.
  if (fsdp2 && unit.groups.data_parallel_size() == 1) traits.replicated = false;
  traits.trainable = unit.trainable();
  traits.sync = sync && controls.requires_gradient_sync;
  traits.all_reduce = controls.requires_all_reduce;
  traits.reshard_after_forward = controls.reshard_after_forward.value_or(traits.reshard_after_forward);
  traits.reshard_to_group = unit.post_forward_group != nullptr;
  if (fsdp2) traits.reshard_after_backward = traits.reshard_after_sync = controls.reshard_after_backward;
  traits.unshard_in_backward = controls.unshard_in_backward;
  traits.recompute = unit.settings.activation_checkpointing;
  traits.recomputes_inner = unit.modules.size() == 1;
  traits.backward_prefetch_order = unit.settings.backward_prefetch;
  traits.forward_prefetch_next = unit.settings.forward_prefetch;
  traits.forward_prefetch = controls.forward_prefetch;
  traits.backward_prefetch = controls.backward_prefetch;
  return traits;
}

}  // namespace

std::vector<UnitTraits> ScheduleTraitsOf(const UnitStore& units, bool sync) {
  std::vector<UnitTraits> traits;
  for (int index = 0; index < units.size(); ++index) traits.push_back(TraitsOf(units, index, sync));
  const UnitTraits bare{.sharded = false, .trainable = false, .recompute = true, .has_parameters = false};
  traits.resize(units.num_scheduled(), bare);
  return traits;
}

}  // namespace fsdp
