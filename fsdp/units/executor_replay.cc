// SPDX-License-Identifier: Apache-2.0
//
// The part of Executor that makes a captured step begin as an ordinary one: with every unit resharded, so that the
// graph has their all-gathers, and without gradients.
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/executor.h"

namespace fsdp {
namespace {

// A captured step replaces gradients.
absl::Status CheckHasNoGradient(const Unit& unit) {
  for (const auto& parameter : unit.sharded_parameters) {
    if (!parameter->has_grad) continue;
    return absl::FailedPreconditionError(absl::StrCat("parameter \"", parameter->fqn,
                                                      "\" has a gradient before a captured step, which does not add "
                                                      "to it: call the optimizer's ZeroGrad first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Executor::PrepareReplay() {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses("a captured step"));
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("a captured step"));
  FSDP_RETURN_IF_ERROR(WriteBack());
  runner_->ReshardStale();
  for (const int index : std::exchange(kept_, {})) Reshard(index);
  for (int index = 0; index < units_.size(); ++index) {
    const Unit& unit = units_.unit(index);
    if (!unit.sharded()) Reshard(index);  // a copy that exists already would not be made anew by a replay
    if (units_.pass(index).gathered) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", unit.display_name(),
                       " is unsharded before a captured step, which all-gathers it: reshard it first"));
    }
    if (unit.trainable() && !unit.grad_shard.defined()) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", unit.display_name(),
                       " was frozen in all forwards so far, and a captured step cannot give it memory for gradients: "
                       "run a step that is not captured first, and capture again"));
    }
    FSDP_RETURN_IF_ERROR(CheckHasNoGradient(unit));
  }
  post_optim_event_ = Event();  // a replay waits for all compute, and a later forward must not wait for less
  runtime_->RefreshComputeShards();
  return absl::OkStatus();
}

}  // namespace fsdp
