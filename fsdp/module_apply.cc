// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/module_apply.h"

#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/summon_full_params.h"

namespace fsdp {
namespace {

// Every rank gathers every unit, whatever happens: collectives wait for all.
void Visit(Module& module, const UnitStore& units, const std::function<absl::Status(Module&)>& fn,
           const ShardsChanged& changed, absl::Status& first) {
  std::unique_ptr<SummonFullParamsGuard> guard;
  if (units.IndexOf(module) >= 0) {
    auto summoned = SummonFullParamsGuard::Create(module, units, {.recurse = false}, changed);
    first.Update(summoned.status());
    if (summoned.ok()) guard = *std::move(summoned);
  }
  for (const auto& [name, child] : module.children()) Visit(*child, units, fn, changed, first);
  if (first.ok()) first.Update(fn(module));
  if (guard != nullptr) first.Update(guard->Close());
}

}  // namespace

absl::Status ApplyToModules(Module& root, const UnitStore& units, const std::function<absl::Status(Module&)>& fn,
                            const ShardsChanged& changed) {
  absl::Status first;
  Visit(root, units, fn, changed, first);
  return units.groups().AgreeOn(first);
}

}  // namespace fsdp
