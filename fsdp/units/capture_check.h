// SPDX-License-Identifier: Apache-2.0
//
// What of a model stands against capturing its steps in a graph (tensor/work_graph.h), known before one is captured.
#ifndef FSDP_FSDP_UNITS_CAPTURE_CHECK_H_
#define FSDP_FSDP_UNITS_CAPTURE_CHECK_H_

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {

// kFailedPrecondition, by name and with what to do instead: a device or a backend without graphs, units whose
// parameters are on the host, parameters that no unit has, a trace. Local, and the same on every rank.
absl::Status CheckCanCapture(const UnitStore& units);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_CAPTURE_CHECK_H_
