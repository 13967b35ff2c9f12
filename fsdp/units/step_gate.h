// SPDX-License-Identifier: Apache-2.0
//
// StepGate: decides whether a call that belongs between steps, such as GetStateDict, may be made now. Executor decides
// by the passes that its hooks report, ManualUnits by the program's calls.
#ifndef FSDP_FSDP_UNITS_STEP_GATE_H_
#define FSDP_FSDP_UNITS_STEP_GATE_H_

#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// Errors are kFailedPrecondition and name `call`.
class StepGate {
 public:
  virtual ~StepGate() = default;

  // For calls that put work on the compute stream. Does not wait.
  virtual absl::Status CheckBetweenPasses(std::string_view call) const = 0;

  // For calls that read or change parameters. Waits for all streams, so it also returns their errors.
  virtual absl::Status CheckIdle(std::string_view call) = 0;

  // For calls that replace all parameters, which may repair a step that went wrong. Waits as CheckIdle.
  virtual absl::Status CheckCanLoad(std::string_view call) { return CheckIdle(call); }

  // A call between steps may have changed the shards. `loaded`: it has replaced all parameters.
  virtual void MarkShardsChanged(bool loaded) { static_cast<void>(loaded); }
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_STEP_GATE_H_
