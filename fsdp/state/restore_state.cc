// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/restore_state.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state.h"

namespace fsdp {
namespace {

// The comparison is a part of the load, so that the ranks agree on its errors together with the errors of `load`.
absl::Status LoadAndCompare(const std::function<absl::Status(StateDict& wanted)>& load, const RestoreOptions& options,
                            StateDict& wanted, std::vector<AttributeDifference>& differences) {
  const bool is_known_before = !options.saved.empty();
  if (is_known_before) {
    FSDP_ASSIGN_OR_RETURN(differences, CheckSavedAttributes(options.saved, options));
  }
  FSDP_RETURN_IF_ERROR(load(wanted));
  if (!is_known_before) {
    FSDP_ASSIGN_OR_RETURN(differences, CheckSavedAttributes(wanted.attributes, options));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<AttributeDifference>> RestoreState(
    Module& root, const UnitStore& units, absl::Span<Optimizer* const> optimizers,
    const std::function<absl::Status(StateDict& wanted)>& load, const RestoreOptions& options, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(StateDict wanted, LiveModelState(root, units));
  std::vector<LiveOptimState> live;  // by optimizer
  for (Optimizer* optimizer : optimizers) {
    FSDP_ASSIGN_OR_RETURN(LiveOptimState added, LiveOptimState::AddTo(wanted, *optimizer));
    live.push_back(std::move(added));
  }
  std::vector<AttributeDifference> differences;
  const auto try_load = [&] {
    return units.groups().AllReduceStatus(LoadAndCompare(load, options, wanted, differences));
  };
  absl::Status loaded = try_load();
  // What is missing may be the steps that optimizers of PyTorch do not save. Nothing was read then.
  if (absl::IsNotFound(loaded)) {
    bool wants_less = false;
    for (size_t i = 0; i < live.size(); ++i) wants_less |= live[i].TakeOutSteps(*optimizers[i], wanted);
    if (wants_less && try_load().ok()) loaded = absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(loaded);
  for (size_t i = 0; i < live.size(); ++i) FSDP_RETURN_IF_ERROR(live[i].Commit(*optimizers[i], stream));
  return differences;
}

}  // namespace fsdp
