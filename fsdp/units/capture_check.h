// SPDX-License-Identifier: Apache-2.0
//
// Whether a model's steps can be captured in a graph (tensor/work_graph.h), as far as that is known before the capture
// or a replay.
#ifndef FSDP_FSDP_UNITS_CAPTURE_CHECK_H_
#define FSDP_FSDP_UNITS_CAPTURE_CHECK_H_

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {

// kFailedPrecondition, naming the cause and what to do instead, for a device or a backend without graphs, units whose
// parameters are in host memory, trainable parameters that FSDP ignores, and a trace. Local; the same on every rank.
absl::Status CheckCanCapture(const UnitStore& units);

// kFailedPrecondition, naming the parameter, if one of the unit has a gradient: a captured step replaces it. Local.
absl::Status CheckHasNoGradient(const Unit& unit);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_CAPTURE_CHECK_H_
