// SPDX-License-Identifier: Apache-2.0
//
// A forward resets what a failed pass left, so a program that trains on need not call this (Executor::BeginForward). It
// is for one that does something else next: between passes, calls are refused until the state is known.
#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/executor.h"

namespace fsdp {

absl::Status Executor::ResetIterState() {
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("ResetIterState"));
  runtime_->gradients().Discard();
  ForgetModulesRun();
  for (int index = 0; index < units_.size(); ++index) {
    for (const auto& parameter : units_.unit(index).parameters) parameter->data = Tensor();
    Reshard(index);
  }
  kept_.clear();
  in_pass_ = in_backward_ = false;
  return runtime_->Synchronize();
}

}  // namespace fsdp
