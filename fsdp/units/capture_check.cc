// SPDX-License-Identifier: Apache-2.0
//
// A captured step is replayed without the host, so each thing that needs the host in every step stands against it: a
// backend whose collectives are host calls, an optimizer step in host memory, a norm that is summed on the host, time
// stamps.
#include "fsdp/fsdp/units/capture_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/capturing_group.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

absl::Status CheckGroup(const ProcessGroup* group) {
  if (group == nullptr || CanCapture(*group)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a step's collectives cannot be captured: backend ",
                                                    std::string(group->backend()), " of ", group->size(),
                                                    " ranks needs its hosts in each; use backend nccl, or one rank"));
}

absl::Status CheckUnit(const Unit& unit) {
  if (unit.offloaded()) {
    return absl::FailedPreconditionError(absl::StrCat("unit ", unit.display_name(),
                                                      ": its parameters are on the host, whose optimizer step cannot "
                                                      "be captured; train without CPU offload"));
  }
  FSDP_RETURN_IF_ERROR(CheckGroup(unit.groups.shard.get()));
  FSDP_RETURN_IF_ERROR(CheckGroup(unit.groups.replicate.get()));
  return CheckGroup(unit.post_forward_group.get());
}

}  // namespace

absl::Status CheckCanCapture(const UnitStore& units) {
  if (!HasGraphs(units.device())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is on ", units.device().name(), ": a step can be captured on a CUDA device alone"));
  }
  for (const auto& unit : units.units()) FSDP_RETURN_IF_ERROR(CheckUnit(*unit));
  for (const auto& [name, parameter] : units.unmanaged()) {
    if (!parameter->requires_grad) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", name,
                     "\" is ignored by FSDP, so the norm of all gradients needs the host and a "
                     "step cannot be captured; let a unit have it, or freeze it"));
  }
  if (units.trace() != nullptr) {
    return absl::FailedPreconditionError(
        "a trace marks when work runs, by the host, and cannot be captured; trace "
        "steps that are not");
  }
  return absl::OkStatus();
}

absl::Status CheckHasNoGradient(const Unit& unit) {
  for (const auto& parameter : unit.sharded_parameters) {
    if (!parameter->has_grad) continue;
    return absl::FailedPreconditionError(absl::StrCat("parameter \"", parameter->fqn,
                                                      "\" has a gradient before a captured step, which does not add "
                                                      "to it: call the optimizer's ZeroGrad first"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
